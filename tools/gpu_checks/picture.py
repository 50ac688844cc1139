"""The bandwidth of the kernels as a picture (SVG): bars beside those of CUDA's own copy, for each
size of fusion buffer. Drawn here, since a machine with a GPU seldom has a plotting program.
"""

import html

COLOURS = ("#8c8c8c", "#1b6ca8", "#3a9b6e", "#c0c0c0", "#c77d1e", "#8a4fa3")
BAR, GAP, LEFT, TOP, HEIGHT = 14, 26, 60, 46, 240


def groups_of(rows):
    """{label: {contender: row}}, in the order of the rows."""
    groups = {}
    for row in rows:
        size = row["bytes"] / 2**20
        count = row["tensors"]
        label = f"{size:.0f} MiB, {count} tensor{'s' if count > 1 else ''}"
        if row["tensors_aligned_to"] < 16:
            label += f", to {row['tensors_aligned_to']} B"
        groups.setdefault(label, {})[row["contender"]] = row
    return groups


def bars(groups, contenders, top):
    x = LEFT
    for label, group in groups.items():
        begin = x
        for number, contender in enumerate(contenders):
            height = HEIGHT * group[contender]["GB_per_s"] / top
            yield (f'<rect x="{x}" y="{TOP + HEIGHT - height:.1f}" width="{BAR - 2}" '
                   f'height="{height:.1f}" fill="{COLOURS[number % len(COLOURS)]}"/>')
            x += BAR
        middle, below = (begin + x) / 2, TOP + HEIGHT + 12
        yield (f'<text x="{middle}" y="{below}" text-anchor="end" '
               f'transform="rotate(-30 {middle} {below})">{html.escape(label)}</text>')
        x += GAP


def draw(device, rows):
    """The text of the picture."""
    groups = groups_of(rows)
    contenders = list(dict.fromkeys(row["contender"] for row in rows))
    top = max(row["GB_per_s"] for row in rows)
    width = LEFT + len(groups) * (len(contenders) * BAR + GAP) + 20
    height = TOP + HEIGHT + 120
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
             'font-family="sans-serif" font-size="11">',
             '<rect width="100%" height="100%" fill="white"/>',
             f'<text x="{LEFT}" y="16" font-size="13">{html.escape(device)}: '
             'bytes read and written, GB/s</text>']
    for number, contender in enumerate(contenders):
        x = LEFT + 150 * number
        parts.append(f'<rect x="{x}" y="24" width="10" height="10" '
                     f'fill="{COLOURS[number % len(COLOURS)]}"/>'
                     f'<text x="{x + 14}" y="33">{html.escape(contender)}</text>')
    for step in range(5):
        y = TOP + HEIGHT * (1 - step / 4)
        parts.append(f'<path d="M{LEFT} {y}H{width - 20}" stroke="#dddddd"/>'
                     f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">'
                     f'{top * step / 4:.0f}</text>')
    parts += bars(groups, contenders, top)
    return "\n".join(parts + ["</svg>", ""])
