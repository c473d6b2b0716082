#!/usr/bin/env python3
"""Holds the prose together: every page is in the book's table of contents, every link between files leads somewhere,
the README stays short, and comments in the sources stay within 120 columns, tables aside.

As mdBook's preprocessor (`outside` in book.toml) it turns links to files that are not in the book into their paths, since
a built book does not lie among them."""

import json
import re
import subprocess
import sys
from pathlib import Path

MOST_WORDS = 600
MOST_COLUMNS = 120


def anchors(page):
    """What headings of a page are linked by."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def faults():
    pages = [Path(name) for name in subprocess.check_output(["git", "ls-files", "*.md"], text=True).split()]
    contents = Path("docs/SUMMARY.md").read_text()
    for page in sorted(Path("docs").glob("*.md")):
        if page.name != "SUMMARY.md" and f"({page.name})" not in contents:
            yield f"{page}: it is not in docs/SUMMARY.md"
    # The library's front page is the README by a link.
    for page in (page for page in pages if not page.is_symlink()):
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            file, _, anchor = target.partition("#")
            if "://" in target or target.startswith("mailto:"):
                continue
            found = page.parent / file if file else page
            if not found.exists():
                yield f"{page}: {target} leads nowhere"
            elif anchor and found.suffix == ".md" and anchor not in anchors(found):
                yield f"{page}: {target} has no such heading"
    for source in subprocess.check_output(["git", "ls-files", "*.rs"], text=True).split():
        for number, line in enumerate(Path(source).read_text().splitlines(), 1):
            if len(line) > MOST_COLUMNS and re.match(r"\s*//(?![/!]? \| )", line):
                yield f"{source}:{number}: a comment of {len(line)} columns, and {MOST_COLUMNS} are allowed"
    words = len(Path("README.md").read_text().split())
    if words > MOST_WORDS:
        yield f"README.md: it has {words} words, and {MOST_WORDS} are allowed; move what is not for a first look to docs/"


def without_links_outside(items):
    """Chapters in which a link that leaves the book is its words and a path."""
    for item in items:
        if chapter := isinstance(item, dict) and item.get("Chapter"):
            link = r"\[([^\]]+)\]\(\.\./([^)\s#]+)[^)\s]*\)"
            chapter["content"] = re.sub(link, lambda m: m[1] if m[2] in m[1] else f"{m[1]} (`{m[2]}`)", chapter["content"])
            without_links_outside(chapter["sub_items"])


if "supports" in sys.argv:
    sys.exit(0)
if sys.argv[1:2] == ["preprocess"]:
    _, book = json.load(sys.stdin)
    without_links_outside(book.get("items") or book.get("sections"))
    json.dump(book, sys.stdout)
    sys.exit(0)
found = list(faults())
print(*found, sep="\n", end="\n" if found else "")
sys.exit(bool(found))
