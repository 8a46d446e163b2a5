"""The byte alphabet of byte-level BPE: every byte has a printable character that stands for it in the vocabulary."""


def _build_alphabet() -> dict[int, str]:
    """Printable Latin-1 bytes stand for themselves; the others, in order, for the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in alphabet:
            alphabet[byte] = chr(0x100 + len(alphabet) - len(printable))
    return alphabet


CHARACTER_OF_BYTE = _build_alphabet()
BYTE_OF_CHARACTER = {character: byte for byte, character in CHARACTER_OF_BYTE.items()}


def to_bytes(token: str) -> bytes | None:
    """The bytes that a vocabulary entry stands for; None if it is not written in the alphabet."""
    try:
        return bytes([BYTE_OF_CHARACTER[character] for character in token])
    except KeyError:
        return None
