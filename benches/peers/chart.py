#!/usr/bin/env python3
"""Draws what `make bench-peers MIXED=1` measured: `chart.py mixed.csv mixed.svg`. Over the time, for each queue and rate: how
long 99 of 100 jobs waited at most, the dead rows, and the CPU of the server. The horizon is held where the ground is grey."""

import csv
import sys
from html import escape
from itertools import groupby

WIDTH, HEIGHT, LEFT, TOP, GAP = 620, 150, 70, 56, 45
COLOURS = ["#2f6f9f", "#c8553d", "#5a9e6f", "#8a6fb0", "#b58a2f", "#555555"]
PANELS = [("p99_ms", "wait of 99 of 100 jobs, ms"), ("dead_rows", "dead rows, thousands"), ("server_cpu_percent", "CPU of the server, % of a core")]


def draw(source, target):
    with open(source, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["p99_ms"]]
    lines = {name: list(group) for name, group in groupby(rows, lambda row: (row["queue"], row["rate"]))}
    seconds = max(int(row["second"]) for row in rows)
    held = max(int(row["second"]) for row in rows if row["held"] == "1")
    across = lambda second: LEFT + WIDTH * int(second) / seconds
    parts = []
    for number, (key, title) in enumerate(PANELS):
        top, scale = TOP + number * (HEIGHT + GAP), 1000 if key == "dead_rows" else 1
        most = max(float(row[key]) for row in rows) / scale or 1
        parts += [f'<rect x="{LEFT}" y="{top}" width="{across(held) - LEFT:.1f}" height="{HEIGHT}" fill="#eeeeee"/>',
                  f'<path d="M{LEFT} {top}v{HEIGHT}h{WIDTH}" fill="none" stroke="black"/>',
                  f'<text x="{LEFT}" y="{top - 6}">{title}</text>',
                  f'<text x="{LEFT - 6}" y="{top + 10}" text-anchor="end">{most:,.0f}</text>',
                  f'<text x="{LEFT - 6}" y="{top + HEIGHT}" text-anchor="end">0</text>']
        for colour, group in zip(COLOURS, lines.values()):
            points = " ".join(f"{across(row['second']):.1f},{top + HEIGHT * (1 - float(row[key]) / scale / most):.1f}" for row in group)
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    bottom = TOP + len(PANELS) * (HEIGHT + GAP) - GAP
    parts += [f'<text x="{LEFT}" y="{bottom + 16}">0</text>', f'<text x="{LEFT + WIDTH}" y="{bottom + 16}" text-anchor="end">{seconds / 60:g} minutes</text>',
              f'<text x="{across(held):.1f}" y="{bottom + 16}" text-anchor="middle">horizon free</text>']
    for number, (colour, (queue, rate)) in enumerate(zip(COLOURS, lines)):
        row, column = divmod(number, 3)
        parts.append(f'<text x="{LEFT + column * 200}" y="{14 + row * 16}" fill="{colour}">{escape(queue)}, {rate} a second</text>')
    size = f'width="{LEFT + WIDTH + 20}" height="{bottom + 26}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="white"/>'
    with open(target, "w") as file:
        file.write("\n".join([head, *parts, "</svg>"]) + "\n")


if __name__ == "__main__":
    draw(*sys.argv[1:])
