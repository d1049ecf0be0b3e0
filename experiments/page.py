"""Write docs/reproduction.md: every table and figure beside what the paper says, from the files in results/ alone.

python experiments/page.py
"""

from pathlib import Path

import reproduction
from reproduction import Table

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "results", ROOT / "docs" / "reproduction.md"
VERDICTS = {True: "Holds here.", False: "Does not hold here.", None: "Cannot be told."}
HEAD = """# The paper, table by table

Each table and figure of [the paper](https://proceedings.mlr.press/v151/xu22a.html) is run by one command, in a clone of
the repository: `sdebnn reproduce fig3` at a small scale, in minutes on two processors, and
`sdebnn reproduce fig3 --scale full` as shown here. An interrupted one goes on where it stopped.
"""
WAITING = """
These run at the small scale, and their results at full scale, which need a GPU, are not here yet: {}.
"""


def page() -> str:
    """The text of the page."""
    names = reproduction.names()
    done = [name for name in names if reproduction.file_of(name, RESULTS).exists()]
    waiting = ", ".join(f"`{name}`" for name in names if name not in done)
    parts = [HEAD + (WAITING.format(waiting) if waiting else ""), *map(_section, done)]
    return "\n".join(parts)


def _section(name: str) -> str:
    subject, result = reproduction.experiment(name), reproduction.read(reproduction.file_of(name, RESULTS))
    rows = result["rows"]
    found = {row: each["found"] for row, each in rows.items()}
    finding, table = subject.finding(found), subject.table(found)
    parts = [f"## {subject.title}", f"**The paper:** {subject.claim}", f"**{VERDICTS[finding.holds]}** {finding.words}"]
    if table is not None:
        parts.append(_markdown(table))
    if (RESULTS / f"{name}.png").exists():
        parts.append(f"![{subject.title}](../results/{name}.png)")
    dates, devices = ({each[what] for each in rows.values()} for what in ("date", "device"))
    seconds = sum(each["seconds"] for each in rows.values())
    parts.append(
        f"*`{result['command']}`, {len(rows)} rows in {seconds:.0f} seconds on {', '.join(sorted(devices))}, "
        f"{max(dates)}; [results/{name}.json](../results/{name}.json).*"
    )
    return "\n\n".join(parts) + "\n"


def _markdown(table: Table) -> str:
    lines = [table.headings, ["---"] * len(table.headings), *table.rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page())
