"""What came out, as Markdown tables and SVG pictures; and into docs/performance.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
PICTURES = ROOT / "docs" / "_static" / "performance"
#: Pictures have the colors of the site, which also differ in gray.
FASTER, SLOWER, EDGE = "#24694d", "#b0562f", "#5a5a5a"


def number(value: float | None, digits: int = 3) -> str:
    """Return a figure with so many digits that count, at least all those before the point."""
    if value is None:
        return "–"
    if isinstance(value, int) or value == 0:
        return f"{value:,.0f}"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:#.{digits}g}".rstrip(".")


def spread(values: Iterable[float] | None, digits: int = 3) -> str:
    """Return a median with its quartiles."""
    if values is None:
        return "–"
    low, middle, high = values
    return f"{number(middle, digits)} ({number(low, digits)}–{number(high, digits)})"


def markdown(table: dict[str, Any]) -> str:
    """Return a table with one line for each side."""
    rows = [row for row in table["rows"] if not row["left_out"]]
    heads: dict[str, Any] = {"": lambda row: row["side"]}
    if any(row["rate"] for row in rows):
        heads[f"{table['unit']}/s"] = lambda row: number(row["rate"] and row["rate"][1])
    if any(row["ratio"] for row in rows[1:]):
        ours = rows[0]["side"]
        heads[f"{ours} ÷ it"] = lambda row: "1" if row is rows[0] else spread(row["ratio"], 2)
    for key, title in (("client", "client µs"), ("server", "server µs"), ("requests", "requests")):
        if any(row[key] is not None for row in rows):
            heads[title] = lambda row, key=key: number(row[key])
        if key == "client" and all(row[key] for row in rows) and rows[1:]:
            heads["client ÷ its"] = lambda row: (
                "1" if row is rows[0] else number(rows[0]["client"] / row["client"], 2)
            )
    for name in dict.fromkeys(name for row in rows for name in row["extra"]):
        heads[name] = lambda row, name=name: of_any(row["extra"].get(name))
    if any(row["settings"] for row in rows):
        heads["settings"] = lambda row: row["settings"] or "–"
    lines = [list(heads), ["---", *["---:" if h != "settings" else "---" for h in list(heads)[1:]]]]
    lines += [[cell(row) for cell in heads.values()] for row in rows]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    left = [f"{row['side']} ({row['left_out']})" for row in table["rows"] if row["left_out"]]
    notes = [table["note"]] if table["note"] else []
    notes += [f"Left out: {', '.join(left)}."] if left else []
    return "\n\n".join([text, *notes])


def of_any(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return spread(value)
    return value if isinstance(value, str) else number(value)


def sections(results: dict[str, Any], parts: Iterable[str]) -> Iterator[str]:
    """Yield the Markdown of some parts."""
    for part in parts:
        for table in results["parts"].get(part, {}).get("tables", []):
            yield f"### {table['title']}"
            if table["plot"]:
                name = f"{slug(table['title'])}.svg"
                yield f"![{table['title']}](_static/performance/{name})"
            yield markdown(table)


def slug(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def draw(table: dict[str, Any], path: Path) -> bool:
    """Draw how often distlock worked while each other side did once; False if there is nothing."""
    import matplotlib

    matplotlib.use("svg")
    # The same picture for the same figures; letters are drawn, so that no font is needed.
    matplotlib.rcParams.update({"svg.hashsalt": "distlock", "svg.fonttype": "path"})
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, NullFormatter

    first, *others = [row for row in table["rows"] if not row["left_out"]]
    bars = [row for row in others if row["ratio"]]
    if not bars:
        return False
    figure, axes = pyplot.subplots(figsize=(7, 0.7 + 0.36 * len(bars)), layout="constrained")
    for place, row in enumerate(reversed(bars)):
        low, middle, high = row["ratio"]
        color = FASTER if middle >= 1 else SLOWER
        axes.barh(place, middle - 1, left=1, color=color, height=0.62)
        axes.errorbar(
            middle, place, xerr=[[middle - low], [high - middle]], color=EDGE, capsize=3, lw=1.2
        )
        axes.annotate(
            f"{number(middle, 2)}×",
            (max(high, 1) if middle >= 1 else min(low, 1), place),
            xytext=(6 if middle >= 1 else -6, 0),
            textcoords="offset points",
            ha="left" if middle >= 1 else "right",
            va="center",
        )
    axes.set_yticks(range(len(bars)), [row["side"] for row in reversed(bars)])
    axes.set_xscale("log")
    least = min(min(row["ratio"]) for row in bars)
    most = max(max(row["ratio"]) for row in bars)
    axes.set_xlim(min(0.7, least / 2), max(1.5, most * 2))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.axvline(1, color=EDGE, lw=1)
    axes.set_xlabel(f"{first['side']} ÷ peer, {table['unit']} per second: right of 1 it is faster")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    # Lines end without spaces, as in all files here.
    path.write_text("\n".join(map(str.rstrip, path.read_text().splitlines())) + "\n")
    return True


def write(results: dict[str, Any], pictures: Path) -> None:
    """Draw the pictures; tables without one know of it afterwards."""
    try:
        import matplotlib as _  # noqa: F401
    except ImportError:
        print("No pictures: matplotlib is not installed.")
        for part in results["parts"].values():
            for table in part["tables"]:
                table["plot"] = ""
        return
    for part in results["parts"].values():
        for table in part["tables"]:
            drawn = table["plot"] and draw(table, pictures / f"{slug(table['title'])}.svg")
            table["plot"] = table["plot"] if drawn else ""


def about(results: dict[str, Any]) -> str:
    """Return where, when and with what the figures were made."""
    machine, versions = results["machine"], results["versions"]
    lines = [
        f"- {results['date']}, {'quick' if results['quick'] else 'whole'} run,"
        f" {machine['cores']} cores ({machine['processor']}), which clients and servers shared;"
        f" load {machine['load']:.1f} at the start.",
        "- " + ", ".join(f"{name} {version}" for name, version in versions.items()) + ".",
    ]
    return "\n".join(lines)


def publish(results: dict[str, Any], page: Path = PAGE, pictures: Path = PICTURES) -> None:
    """Replace what is between the marks of the page: ``<!-- locks -->`` to ``<!-- end -->``."""
    for old in pictures.glob("*.svg"):
        old.unlink()
    write(results, pictures)

    def filled(match: re.Match[str]) -> str:
        name = match[1]
        body = [about(results)] if name == "about" else list(sections(results, [name]))
        body = body or [f"This run did not include this part: `python -m benchmarks {name}`."]
        return "\n\n".join([f"<!-- {name} -->", *body, "<!-- end -->"])

    text = page.read_text()
    page.write_text(re.sub(r"<!-- (\w+) -->.*?<!-- end -->", filled, text, flags=re.DOTALL))
