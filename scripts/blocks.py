"""Generated parts of pages that are written by hand: the lines between two comments with a name."""

import re
from collections.abc import Iterable


def with_block(page: str, name: str, lines: Iterable[str]) -> str:
    """Return a page with these lines between its comments `<!-- name -->` and `<!-- /name -->`."""
    block = "\n".join(lines)
    pattern = re.compile(rf"(?<=<!-- {re.escape(name)} -->\n).*?(?=<!-- /{re.escape(name)} -->)", re.DOTALL)
    page, count = pattern.subn(lambda _: block, page)
    if count != 1:
        raise ValueError(f"The page has {count} blocks <!-- {name} --> … <!-- /{name} -->; expected 1.")
    return page
