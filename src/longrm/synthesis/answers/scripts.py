import re

# Japanese kana and Chinese characters.
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


def unspaced(text: str) -> bool:
    """Whether a text holds characters that are written without spaces between words."""
    return _UNSPACED.search(text) is not None
