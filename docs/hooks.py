"""What the site adds to the documents: tutorials from their scripts, and pages of the files that documents link to."""

import os
import re
from pathlib import Path

import jupytext
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
ROOT = DOCS.parent
LINK = re.compile(r"(?<!!)\]\(([^)#:]+)(#[^)]*)?\)")
LANGUAGES = {".py": "python", ".toml": "toml", ".md": "markdown", ".cff": "yaml", ".yml": "yaml"}
FOLDER = "files"
"""Where the pages of files outside of the documents are."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each tutorial, and for each file of the repository that a document links to."""
    for script in sorted((ROOT / "tutorials").glob("*.py")):
        files.append(_generated(config, f"tutorials/{page_of(script)}", tutorial(script)))
    outside = {
        target
        for file in files.documentation_pages()
        for target in _outside(file.src_uri, file.content_string)
        if target.exists()
    }
    for path in sorted(outside):
        files.append(_generated(config, _page_of_file(path), listing(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links that leave the documents to the pages made of those files."""
    here = Path(page.file.src_uri).parent

    def pointed(found: re.Match[str]) -> str:
        target = _target(page.file.src_uri, found.group(1))
        if target is None or not target.exists():
            return found.group(0)
        return f"]({os.path.relpath(_page_of_file(target), here)})"

    return LINK.sub(pointed, markdown)


def page_of(script: Path) -> str:
    """The page of a tutorial: `2_a_clinics_own_images.py` is `a-clinics-own-images.md`."""
    return script.stem.partition("_")[2].replace("_", "-") + ".md"


def tutorial(script: Path) -> str:
    """A script's cells as a page: text as it is, code in blocks."""
    cells = jupytext.read(script).cells
    parts = [one.source if one.cell_type == "markdown" else f"```python\n{one.source}\n```" for one in cells]
    told = f"*Made of `tutorials/{script.name}`: run it as a script, or open it as a notebook with jupytext.*"
    title, _, rest = "\n\n".join(parts).partition("\n")
    return f"{title}\n\n{told}\n{rest}\n"


def listing(path: Path) -> str:
    """A file as it is; of a folder, its files."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        inside = sorted(one for one in path.rglob("*") if one.suffix in LANGUAGES and "__pycache__" not in one.parts)
        return f"# {name}/\n\n" + "\n\n".join(f"## {one.relative_to(path)}\n\n{_block(one)}" for one in inside)
    return f"# {name}\n\n{_block(path)}\n"


def _block(path: Path) -> str:
    text = path.read_text(encoding="utf-8").rstrip()
    return f"````{LANGUAGES.get(path.suffix, 'text')}\n{text}\n````"


def _outside(page: str, markdown: str) -> list[Path]:
    targets = (_target(page, found.group(1)) for found in LINK.finditer(markdown))
    return [target for target in targets if target is not None]


def _target(page: str, link: str) -> Path | None:
    """The file that a link leads to, where it is one of the repository and none of the documents."""
    path = (DOCS / page).parent.joinpath(link).resolve()
    return path if path.is_relative_to(ROOT) and not path.is_relative_to(DOCS) and path != ROOT else None


def _page_of_file(path: Path) -> str:
    return f"{FOLDER}/{path.relative_to(ROOT).as_posix().replace('.', '-')}.md"


def _generated(config: MkDocsConfig, uri: str, content: str) -> File:
    shown = InclusionLevel.NOT_IN_NAV if uri.startswith(FOLDER) else InclusionLevel.UNDEFINED
    return File.generated(config, uri, content=content, inclusion=shown)
