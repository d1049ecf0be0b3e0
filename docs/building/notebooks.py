"""A page as a Jupyter notebook: text in cells of Markdown, blocks of code in cells with their outputs."""

import base64
import json
from typing import Any

from execution import Output, blocks_of


def notebook(text: str, outputs: list[Output]) -> str:
    """The page as the JSON of a notebook. Blocks of the shell become cells of bash."""
    cells: list[dict[str, Any]] = []
    at = 0
    for block, output in zip(blocks_of(text), outputs, strict=True):
        cells.append(_words(text[at : block.start]))
        code = block.code if block.language == "python" else f"%%bash\n{block.code}"
        shown = [{"output_type": "stream", "name": "stdout", "text": _lines(output.text)}] if output.text else []
        shown += [
            {"output_type": "display_data", "metadata": {}, "data": {"image/png": base64.b64encode(each).decode()}}
            for each in output.figures
        ]
        cells.append(
            {
                "cell_type": "code", "metadata": {}, "execution_count": None, "source": _lines(code.rstrip("\n")),
                "outputs": shown,
            }
        )  # fmt: skip
        at = block.end
    cells.append(_words(text[at:]))
    cells = [{"id": f"cell-{number}", **cell} for number, cell in enumerate(each for each in cells if each["source"])]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}, indent=1)


def _words(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": _lines(text.strip())}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)
