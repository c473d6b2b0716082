#!/usr/bin/env python3
"""Holds what ARCHITECTURE.md says about who may import whom: arrows between crates, no cycles between the modules of a
crate or of the Python package, and the tank's operation behind its seam. Also, that the README's first command compiles
nothing that only other languages need.

Crates are read from `cargo metadata`, development dependencies included. Modules are read from the sources: a path that
begins with `crate`, `super` or `self` is an arrow to the module that defines what it names, through re-exports; tests
do not count. A module and those inside of it are one thing to whoever stands outside, so arrows are compared between
siblings, and a module may use its own parts and they it. Python's imports count wherever they stand, also inside
functions and for types only.
"""

import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

# Who may import whom. A crate that is not here needs a row, and a line in ARCHITECTURE.md.
ARROWS = {
    "format": "",
    "page": "",
    "ptx": "",
    "op": "format",
    "sim": "ptx",
    "cpu": "op format",
    "gpu": "op format ptx sim",
    "hammerhead": "cpu gpu op format",
    "referee": "cpu gpu op",
    "testkit": "hammerhead cpu gpu op format ptx sim",
    "tank": "page referee testkit hammerhead gpu op format",
    "cli": "tank page referee testkit hammerhead gpu op format ptx sim",
    "c": "hammerhead",
    "python": "hammerhead ptx sim",
}
# The simulator is for tests and the command line: whoever embeds the library does not build it.
OPTIONAL = {("gpu", "sim")}
# The referee and the tank's game know no operation: only the folder of this one and the registry beside it may have its
# words, or call what computes it.
OPERATION = Path("crates/tank/src/operations/dual_gemm")
WORDS = re.compile(r"nvfp4|dual.?gemm|silu|e2m1|e4m3|ping.?pong|dequant", re.IGNORECASE)
NEUTRAL = {"Error", "Team", "cpu", "machine"}
# Of no use to the command: the other languages' interfaces, and what those alone stand on.
NOT_THE_COMMANDS = re.compile(r"hammerhead-(c|python)|pyo3.*|cbindgen")


def crates_at_fault():
    metadata = subprocess.run(
        ["cargo", "metadata", "--no-deps", "--format-version", "1"], check=True, capture_output=True, text=True
    )
    packages = {Path(p["manifest_path"]).parent.name: p for p in json.loads(metadata.stdout)["packages"]}
    folders = {package["name"]: folder for folder, package in packages.items()}
    for folder, package in sorted(packages.items()):
        if folder not in ARROWS:
            yield f"the crate {folder} has no row in ARROWS"
            continue
        for dependency in package["dependencies"]:
            if not dependency.get("path"):
                continue
            to = folders[dependency["name"]]
            if to not in ARROWS[folder].split():
                yield f"{folder} → {to} is an arrow that ARCHITECTURE.md does not know"
            if (folder, to) in OPTIONAL and not dependency["optional"]:
                yield f"{folder} → {to} must be optional"
        for feature in package["features"].get("default", []):
            yield f"{folder} has the default feature {feature}: a crate's extras are asked for"


def first_command_at_fault():
    """What `cargo run` compiles is what `cargo tree` shows without a package's name."""
    tree = subprocess.run(
        ["cargo", "tree", "--quiet", "--edges", "normal,build", "--prefix", "none", "--format", "{p}"],
        check=True,
        capture_output=True,
        text=True,
    )
    for name in sorted({line.split()[0] for line in tree.stdout.splitlines() if line}):
        if NOT_THE_COMMANDS.fullmatch(name):
            yield f"`cargo run` compiles {name}, which the command does not need; see default-members in Cargo.toml"


def code_of(path):
    """A file's text without comments, strings and tests."""
    text = re.sub(r'//[^\n]*|"(?:\\.|[^"\\])*"', "", path.read_text())
    return text.split("mod tests {")[0]


def paths_of(tree):
    """`a::{b, c::{d, e}}` as a list of whole paths."""
    prefix, brace, rest = tree.strip().partition("{")
    if not brace:
        return [re.split(r"\s+as\s+", prefix)[0].strip().removesuffix("::self")]
    parts, depth, part = [], 0, ""
    for char in rest.rpartition("}")[0] + ",":
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += char
    return [prefix.strip() + path for part in parts if part.strip() for path in paths_of(part)]


USE = re.compile(r"\b(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);")
INLINE = re.compile(r"\b(?:crate|super|self)(?:::[A-Za-z_]\w*)+")


class Modules:
    """The modules of a crate, by their path as a tuple."""

    def __init__(self, source):
        self.code, self.exported, self.used = {}, defaultdict(list), defaultdict(list)
        for path in source.rglob("*.rs"):
            name = path.relative_to(source).with_suffix("").parts
            self.code[name[:-1] if name[-1] in ("mod", "lib", "main") else name] = code_of(path)
        for module, code in self.code.items():
            for public, tree in USE.findall(code):
                for path in paths_of(tree):
                    self.used[module].append(path)
                    if public:
                        self.exported[module].append(path)
            self.used[module] += INLINE.findall(USE.sub("", code))

    def home(self, module, path, seen=()):
        """The module that defines what a path names, if it is of this crate."""
        at, names = module, [name.strip() for name in path.split("::")]
        if names[0] == "crate":
            at = ()
        elif names[0] not in ("self", "super") and (*at, names[0]) not in self.code:
            return None
        while names and names[0] in ("crate", "self", "super"):
            at = at[:-1] if names[0] == "super" else at
            names = names[1:]
        while names and (*at, names[0]) in self.code:
            at, names = (*at, names[0]), names[1:]
        for export in self.exported[at] if names and (at, names[0]) not in seen else []:
            if export.split("::")[-1] == names[0]:
                home = self.home(at, export, (*seen, (at, names[0])))
                if home is not None:
                    return home
        return at

    def arrows(self):
        """Between siblings: `{parent: {module: {modules it uses}}}`."""
        arrows = defaultdict(lambda: defaultdict(set))
        for module, paths in self.used.items():
            for home in (self.home(module, path) for path in paths):
                if home is None:
                    continue
                shared = next((i for i, pair in enumerate(zip(module, home)) if pair[0] != pair[1]), None)
                if shared is not None:
                    arrows[module[:shared]][module[shared]].add(home[shared])
        return arrows


def cycles(arrows):
    """Sets of modules that use each other, directly or not."""
    reach = {module: set(used) for module, used in arrows.items()}
    for middle in list(reach):
        for used in reach.values():
            if middle in used:
                used |= reach[middle]
    alike = {frozenset(b for b in used if a in reach.get(b, ())) for a, used in reach.items() if a in used}
    return sorted(sorted(cycle) for cycle in alike)


def modules_at_fault():
    for source in sorted(Path("crates").glob("*/src")):
        for parent, arrows in sorted(Modules(source).arrows().items()):
            place = "::".join((source.parent.name, *parent))
            for cycle in cycles(arrows):
                yield f"modules of {place} use each other: {' '.join(cycle)}"


def python_modules_at_fault():
    source = Path("crates/python/python")
    files = [*source.rglob("*.py"), *source.rglob("*.pyi")]
    names = {".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): path for path in files}
    arrows = {}
    for name, path in names.items():
        used = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                used |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                # What is no module of its own is a name of the one that it is imported from.
                parts = (f"{node.module}.{alias.name}" for alias in node.names)
                used |= {part if part in names else node.module for part in parts}
        arrows[name] = used & names.keys()
    for cycle in cycles(arrows):
        yield f"modules of Python import each other: {' '.join(cycle)}"


def seam_at_fault():
    for path in sorted([*Path("crates/referee/src").rglob("*.rs"), *Path("crates/tank/src").rglob("*.rs")]):
        if OPERATION in path.parents or path == OPERATION.parent / "mod.rs":
            continue
        text = path.read_text().split("mod tests {")[0]
        for word in sorted(set(WORDS.findall(text))):
            yield f"{path} speaks of {word}, which is the operation's: {OPERATION}"
        named = [path for _, tree in USE.findall(text) for path in paths_of(tree)] + re.findall(r"\bhammerhead::\w+", text)
        for name in sorted({name.split("::")[1] for name in named if name.startswith("hammerhead::")} - NEUTRAL):
            yield f"{path} uses hammerhead::{name}, which is the operation's: {OPERATION}"


def main():
    faults = [*crates_at_fault(), *first_command_at_fault(), *modules_at_fault()]
    faults += [*python_modules_at_fault(), *seam_at_fault()]
    if Path("crates/cpu/build.rs").read_bytes() != Path("crates/gpu/build.rs").read_bytes():
        faults.append("crates/cpu/build.rs and crates/gpu/build.rs differ; they must be the same file")
    for fault in faults:
        print(fault, file=sys.stderr)
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
