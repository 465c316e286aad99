"""``twofold bench compare``, ``report`` and ``view``: saved results."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from twofold.cli.bench.serve import DOCUMENT_KINDS, check_kind, write_document
from twofold.cli.console import print_json, rich_console, write_file, write_out
from twofold.cli.options import Json
from twofold.core.errors import ParameterError

if TYPE_CHECKING:
    from twofold.bench.compare import Comparison, Pair

Result = Annotated[Path, Parameter(help="A file that `twofold bench … --output FILE.json` wrote.")]
TITLES = ("", "a", "b", "change", "interval", "verdict on b")


def compare(
    a: Result,
    b: Result,
    /,
    *,
    seed: Annotated[int, Parameter(help="Seed of the resampling for the intervals.")] = 0,
    json: Json = False,
) -> None:
    """Compare two results, with confidence intervals, and separate differences from noise."""
    from twofold.bench.compare import compare as compared  # noqa: PLC0415 - start-up time
    from twofold.bench.report.document import read_file  # noqa: PLC0415

    found = compared(read_file(a), read_file(b), seed=seed)
    if json:
        print_json(found.to_json())
    else:
        _print(found)


def report(
    result: Result,
    /,
    *,
    output: Annotated[
        list[Path],
        Parameter(name=("--output", "-o"), negative=(), show_default=False, help="Output file: .html, .csv or .json."),
    ] = [],  # noqa: B006 - cyclopts passes a new list
    json: Json = False,
) -> None:
    """Show a saved result, or convert it to HTML, CSV or JSON."""
    from twofold.bench.report.document import read_file  # noqa: PLC0415
    from twofold.bench.report.words import print_report  # noqa: PLC0415

    for path in output:
        check_kind(path, DOCUMENT_KINDS)
    document = read_file(result)
    for path in output:
        write_document(document, path)
    if json:
        write_out(document.without_requests().to_json().decode() + "\n")
    elif not output:
        print_report(document, rich_console())


def view(
    *results: Result,
    output: Annotated[
        Path | None, Parameter(name=("--output", "-o"), help="Write the page as one .html file instead of serving it.")
    ] = None,
    port: Annotated[int, Parameter(help="Port of the page on this machine; 0: a free one.")] = 0,
) -> None:
    """Look at results in a browser: charts with a zoom, requests as lanes, and two or more results side by side."""
    if not results:
        raise ParameterError("There is nothing to show.", param="results", hint="Name results: a.json b.json.")
    if output is not None:
        check_kind(output, (".html",))
    page = _page(results)
    if output is not None:
        write_file(output, page.decode())
        return
    from twofold.bench.viewer import HOST, page_server  # noqa: PLC0415 - start-up time

    with page_server(page, port) as server:
        write_out(f"http://{HOST}:{server.server_port}/ shows the results. Ctrl-C ends it.\n")
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def _page(paths: Sequence[Path]) -> bytes:
    from twofold.bench.report.document import read_file  # noqa: PLC0415
    from twofold.web.single import single_page  # noqa: PLC0415

    return single_page((path.name, read_file(path).to_json()) for path in paths)


def _print(found: Comparison) -> None:
    from rich.text import Text  # noqa: PLC0415

    from twofold.bench.compare import point_words  # noqa: PLC0415

    console = rich_console()
    unexpected = [each for each in found.differences if not each.expected]
    if unexpected:
        console.print(Text("The settings differ:", style="yellow"))
    for each in unexpected:
        console.print(Text(f"  {each.words()}"))
    for pair in found.pairs:
        console.print()
        console.print(Text(pair.words()))
        _table(pair)
    for point in found.alone:
        console.print(Text(f"Only in one result: {point_words(point) or 'no rate'}", style="dim"))


def _table(pair: Pair) -> None:
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for place, title in enumerate(TITLES):
        table.add_column(title, justify="right" if 0 < place < len(TITLES) - 1 else "left", no_wrap=True)
    styles = {"better": "green", "worse": "red"}
    for row in pair.rows:
        table.add_row(*row.cells(), style=styles.get(row.verdict))
    rich_console().print(table)
