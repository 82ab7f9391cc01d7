"""Draw the figures of docs/how-it-works.md, which show the method: `python scripts/method_figures.py`."""

from pathlib import Path

from l0drop.data.whole import write_whole
from l0drop.report.figures import density

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "figures"
TOKENS = (("The", 0), ("red", 1), ("car", 1), ("of", 0), ("the", 0), ("doctor", 1), ("stops", 1), (".", 0))
"""An example: source tokens, and whether their gate is open."""
ROW = 34
STYLE = (
    "text{fill:#222}.small{font-size:13px}.box{fill:#2f7fc118;stroke:#2f7fc1}.open{fill:#2f7fc1}"
    ".closed{fill:none;stroke:#999;stroke-dasharray:3 3}.zero{fill:#d55e0022;stroke:#d55e00}"
    ".line{stroke:#888;fill:none}.faint{fill:#999;text-decoration:line-through}"
    "@media(prefers-color-scheme:dark){svg:root{background:#1b1b1b}text{fill:#ddd}.faint{fill:#888}}"
)


def flow() -> str:
    """The way of a sentence: tokens, encoder, gates, the short memory, decoder."""
    height = 60 + ROW * len(TOKENS)
    middle = 40 + ROW * len(TOKENS) / 2
    kept = [row for row, (_, gate) in enumerate(TOKENS) if gate]
    top = middle - ROW * (len(kept) + 1) / 2
    parts = [_title(36, "source"), _title(160, "encoder"), _title(268, "encodings"), _title(362, "gate")]
    parts += [_title(478, f"memory, {len(kept) + 1} rows"), _title(632, "decoder")]
    parts += [f'<rect class="box" x="115" y="34" width="90" height="{ROW * len(TOKENS) + 6}" rx="8"/>']
    parts += [f'<rect class="box" x="587" y="{top - 4}" width="90" height="{ROW * (len(kept) + 1) + 6}" rx="8"/>']
    for row, (token, gate) in enumerate(TOKENS):
        y = 40 + ROW * row + ROW / 2
        parts.append(f'<text class="{"" if gate else "faint"}" x="80" y="{y + 5}" text-anchor="end">{token}</text>')
        parts.append(f'<path class="line" d="M86 {y}H113M207 {y}H231"/>')
        parts.append(
            f'<rect class="{"open" if gate else "closed"}" x="233" y="{y - 8}" width="70" height="16" rx="3"/>'
        )
        parts.append(f'<text x="362" y="{y + 5}" text-anchor="middle">{gate}</text>')
        if gate:
            target = top + ROW * kept.index(row) + ROW / 2
            parts.append(f'<path class="line" d="M378 {y}C410 {y} 410 {target} 438 {target}"/>')
            parts.append(f'<rect class="open" x="440" y="{target - 8}" width="70" height="16" rx="3"/>')
            parts.append(f'<path class="line" d="M513 {target}H585"/>')
    y = top + ROW * len(kept) + ROW / 2
    parts.append(f'<rect class="zero" x="440" y="{y - 8}" width="70" height="16" rx="3"/>')
    parts.append(f'<text class="small" x="475" y="{y + 4}" text-anchor="middle">0</text>')
    parts.append(f'<path class="line" d="M513 {y}H585"/>')
    dropped = len(TOKENS) - len(kept)
    parts.append(f'<text class="small" x="478" y="{y + 27}" text-anchor="middle">+ log {dropped}</text>')
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 {height}" role="img" font-size="15" '
        f'style="max-width:100%;height:auto" font-family="Helvetica, Arial, sans-serif"><title>From source tokens to '
        f"the short memory</title><style>{STYLE}</style>"
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def _title(x: float, text: str) -> str:
    return f'<text x="{x}" y="20" text-anchor="middle" font-weight="bold">{text}</text>'


def main() -> None:
    write_whole(FOLDER / "flow.svg", flow())
    write_whole(FOLDER / "hard-concrete.svg", density().svg)


if __name__ == "__main__":
    main()
