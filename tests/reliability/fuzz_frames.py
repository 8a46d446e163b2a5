"""Coverage-guided fuzzing of the frame decoder, by hand: `python -m tests.reliability.fuzz_frames -max_total_time=60`.

Needs atheris, which is no dependency of ours: `pip install atheris`. The arguments are libFuzzer's.
"""

import sys

import atheris

with atheris.instrument_imports(include=["engined.ipc", "engined.protocol"]):
    from engined.errors import ProtocolError
    from engined.ipc.decoder import FrameDecoder
    from engined.protocol.codec import decode
    from engined.protocol.engine import AbortRequests, EngineCoreRequest, UtilityCall

MESSAGES = (EngineCoreRequest, AbortRequests, UtilityCall)


def fuzz(data: bytes) -> None:
    """Whatever the bytes: frames, or a ProtocolError; and the same for what is in them."""
    provider = atheris.FuzzedDataProvider(data)
    decoder = FrameDecoder()
    try:
        while provider.remaining_bytes():
            for frame in decoder.feed(provider.ConsumeBytes(provider.ConsumeIntInRange(1, 64))):
                decode(frame.payload, MESSAGES[frame.type % len(MESSAGES)])
    except ProtocolError:
        return


if __name__ == "__main__":
    atheris.Setup(sys.argv, fuzz)
    atheris.Fuzz()
