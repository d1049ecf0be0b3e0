"""One HTML page that needs nothing else: headings, prose, tables that sort, and pictures in the theme's colours."""

import html
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MAX_BYTES = 5_000_000

STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1e; --paper: #fdfdfb; --soft: #5b5d63; --line: #d5d6d8; --mark: #2a6f97;
  --shade: #f1f3f3; --band: #cddce6; --deep: #12304f; --wrong: #b5432a; --warm: #a85b47; --gold: #846829; }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e8e8ea; --paper: #16181b; --soft: #a9adb5;
  --line: #3a3e45; --mark: #7cc0e4; --shade: #1f2327; --band: #2c4354; --deep: #d7e6f2; --wrong: #f08a6c;
  --warm: #f0a58f; --gold: #e9c46a; } .density image, [id*="-density"] { filter: invert(1) hue-rotate(180deg); } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0.5rem 0; } h2 { font-size: 1.2rem; margin: 2.6rem 0 0.4rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 0.2rem; } p { max-width: 44rem; } a { color: var(--mark); }
.soft { color: var(--soft); } .wide { overflow-x: auto; } nav ul { padding: 0; display: flex; flex-wrap: wrap;
  gap: 0.2rem 1.1rem; list-style: none; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0.6rem 0; }
caption { text-align: left; color: var(--soft); padding: 0.2rem 0; }
th, td { padding: 0.28rem 0.9rem 0.28rem 0; text-align: left; border-bottom: 1px solid var(--line);
  vertical-align: baseline; }
td.number, th.number { text-align: right; } td.number span { white-space: nowrap; display: inline-block; }
td:not(.number) { min-width: 11rem; } th button { white-space: nowrap; }
th button { font: inherit; font-weight: 600; color: inherit; background: none; border: 0; padding: 0; cursor: pointer; }
th button::after { content: " \\2195"; color: var(--soft); }
th[aria-sort="ascending"] button::after { content: " \\2191"; }
th[aria-sort="descending"] button::after { content: " \\2193"; }
button:focus-visible, a:focus-visible, .wide:focus-visible { outline: 2px solid var(--mark); outline-offset: 2px; }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(19rem, 100%), 1fr)); gap: 1.2rem; }
figure { margin: 0.6rem 0; } figure svg, figure img { width: 100%; height: auto; color: var(--ink); }
figure svg text { fill: currentColor; }
figcaption { color: var(--soft); font-size: 0.9rem; max-width: 44rem; }
pre { background: var(--shade); padding: 0.7rem 0.9rem; overflow-x: auto; border-radius: 4px; }
.note { border-left: 3px solid var(--mark); padding: 0.1rem 0 0.1rem 0.9rem; }
@media print { :root { font-size: 10px; } body { max-width: none; font-size: 1rem; padding: 0; }
  .pictures { grid-template-columns: repeat(3, 1fr); } .wide { overflow: visible; }
  nav, th button::after { display: none; }
  figure, tr { break-inside: avoid; } h2 { break-after: avoid; } }
"""

SCRIPT = """
for (const table of document.querySelectorAll("table.sorts")) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = head.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = row => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
      const order = (a, b) => {
        const [x, y] = [value(a), value(b)], [p, q] = [Number(x), Number(y)];
        const both = x !== "" && y !== "" && !Number.isNaN(p) && !Number.isNaN(q);
        if (both) return p - q;
        return (x === "") - (y === "") || x.localeCompare(y, undefined, {numeric: true});
      };
      const rows = [...body.rows].sort((a, b) => up ? order(a, b) : order(b, a));
      body.append(...rows);
    });
  });
}
"""


class Cell(NamedTuple):
    """Text of a table, the number by which it is sorted, if it is one, what stands beside it, and what it links to."""

    text: str
    value: float | None = None
    note: str = ""
    link: str = ""


class Section(NamedTuple):
    """A heading, and the HTML below it."""

    title: str
    body: str

    @property
    def anchor(self) -> str:
        """The name by which the page links to it."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


def escaped(text: object) -> str:
    """Text that is safe inside HTML."""
    return html.escape(str(text))


def paragraph(text: str, style: str = "") -> str:
    """A paragraph of text."""
    return f'<p class="{style}">{escaped(text)}</p>' if style else f"<p>{escaped(text)}</p>"


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[Cell | str]], *, sorts: bool = True) -> str:
    """A table whose columns sort when their heads are clicked. The first cell of a row is its head."""
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    numeric = [_is_numeric([row[i] for row in cells]) for i in range(len(heads))]
    head = "".join(
        f'<th scope="col"{_number(numeric[i])}>'
        + (f'<button type="button">{escaped(name)}</button>' if sorts else escaped(name))
        + "</th>"
        for i, name in enumerate(heads)
    )
    body = "".join(
        f"<tr>{''.join(_cell(cell, i == 0, numeric[i]) for i, cell in enumerate(row))}</tr>" for row in cells
    )
    words = escaped(caption)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{words}"><table{" class=sorts" if sorts else ""}>'
        f"<caption>{words}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _is_numeric(column: Sequence[Cell]) -> bool:
    """Whether each cell that is not empty is a number, and there is one."""
    filled = [cell for cell in column if cell.text]
    return bool(filled) and all(cell.value is not None for cell in filled)


def _number(is_number: bool) -> str:
    return ' class="number"' if is_number else ""


def _cell(cell: Cell, is_head: bool, is_number: bool) -> str:
    value = "" if cell.value is None else f' data-value="{cell.value!r}"'
    if is_head:
        text = escaped(cell.text)
        linked = f'<a href="{escaped(cell.link)}">{text}</a>' if cell.link else text
        return f'<th scope="row"{value}>{linked}</th>'
    words = (
        escaped(cell.text) if not cell.note else f"<span>{escaped(cell.text)}</span> <span>{escaped(cell.note)}</span>"
    )
    return f"<td{_number(is_number)}{value}>{words}</td>"


def figure(svg: str, title: str, caption: str, *, style: str = "") -> str:
    """A picture with its name for those who do not see it, and a caption. ``style`` is a class of the style sheet."""
    named = svg.replace("<svg ", f'<svg role="img" aria-label="{escaped(title)}" ', 1)
    head = f'<figure class="{style}">' if style else "<figure>"
    return f"{head}{named}<figcaption><strong>{escaped(title)}.</strong> {escaped(caption)}</figcaption></figure>"


def figures(parts: Iterable[str]) -> str:
    """Pictures beside each other, as many as there is room for."""
    return f'<div class="pictures">{"".join(parts)}</div>'


def page(title: str, about: str, sections: Sequence[Section]) -> str:
    """The whole page."""
    links = "".join(f'<li><a href="#{each.anchor}">{escaped(each.title)}</a></li>' for each in sections)
    body = "".join(map(_section, sections))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escaped(title)}</title><style>{STYLE}</style></head>"
        f'<body><header><h1>{escaped(title)}</h1><p class="soft">{escaped(about)}</p></header>'
        f'<nav aria-label="Contents"><ul>{links}</ul></nav><main>{body}</main><script>{SCRIPT}</script></body></html>\n'
    )


def _section(each: Section) -> str:
    head = f'<h2 id="{each.anchor}">{escaped(each.title)}</h2>'
    return f'<section aria-labelledby="{each.anchor}">{head}{each.body}</section>'
