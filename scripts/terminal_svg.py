"""terminal_svg.py TITLE < captured text > picture.svg: a terminal's text as an SVG, prompt lines bold (docs/chat.svg is made with it:
tmux new -d -x 96 -y 22 'rhapsode run smollm2:135m', send-keys, capture-pane -p)."""
import html
import sys

WIDTH, LINE, LEFT, TOP = 7.85, 18, 16, 44


def main():
    lines = [line.rstrip() for line in sys.stdin.read().rstrip().split("\n")]
    width = LEFT * 2 + WIDTH * max(map(len, lines))
    height = TOP + LINE * len(lines) + 12
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}" '
        'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="13">',
        f'<rect width="100%" height="100%" rx="8" fill="#16181d"/><text x="{LEFT}" y="24" fill="#7d8590">{html.escape(sys.argv[1])}</text>',
    ]
    for i, line in enumerate(lines):
        style = 'fill="#7ee787" font-weight="bold"' if line.startswith(">") else 'fill="#7d8590"' if line.startswith("[") else 'fill="#e6edf3"'
        out.append(f'<text xml:space="preserve" x="{LEFT}" y="{TOP + LINE * i + 6}" {style}>{html.escape(line)}</text>')
    print("\n".join(out) + "\n</svg>")


main()
