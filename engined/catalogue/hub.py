"""Downloads a model by its hub id: `python -m engined.catalogue.hub ID [REVISION]`, in a process of its own.

Apart, because huggingface_hub is slow to import, and because a process can be ended in the middle of a download.
It prints one JSON object: {"path": ...} or {"error": ...}. Progress bars go to stderr.
"""

import json
import sys

from huggingface_hub import snapshot_download

_PATTERNS = ["*.safetensors", "*.json", "*.jinja"]
# Other formats of the same weights: subfolders such as original/, and Mistral's consolidated files. (Of subfolders only
# the configs are wanted: an embedding model says in one of them how it is pooled.)
_IGNORED = ["*/*.safetensors", "*/*.jinja", "consolidated*"]


def _download(model: str, revision: str | None) -> dict[str, str]:
    try:
        path = snapshot_download(model, revision=revision, allow_patterns=_PATTERNS, ignore_patterns=_IGNORED)
    except Exception as error:  # this process has no other job than to say what went wrong
        return {"error": str(error).strip().partition("\n")[0] or type(error).__name__}
    return {"path": path}


if __name__ == "__main__":
    print(json.dumps(_download(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)))
