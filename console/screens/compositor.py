"""What puts widgets together to a picture of the screen, without drawing what is covered anyway.

Textual has every widget draw its lines and cuts them to pieces, from the front to the back, before it sees that something
in front of it is there already. Of a page that is all it has: the containers behind it, each as large as the screen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from textual._compositor import Compositor
from textual.geometry import Region

if TYPE_CHECKING:
    from textual.strip import Strip

Chops = list[dict[int, "Strip | None"]]
"""For each line of the screen: where a piece begins -> the piece."""


class LeanCompositor(Compositor):
    """Textual's, but for the order in which it looks."""

    def _render_chops(self, crop: Region, is_rendered_line: Callable[[int], bool]) -> Sequence[Mapping[int, Strip]]:
        cuts = self.cuts
        chops: Chops = [dict.fromkeys(line[:-1]) for line in cuts]
        open_lines = {y for y in crop.line_range if y < len(chops) and is_rendered_line(y)}
        for widget, (region, clip) in self.visible_widgets.items():
            if not open_lines:
                break
            seen = region.intersection(clip)
            if not crop.overlaps(seen):
                continue
            lines = [y for y in seen.line_range if y in open_lines]
            if not lines:
                continue
            strips = widget.render_lines(
                Region(seen.x - region.x, lines[0] - region.y, seen.width, lines[-1] - lines[0] + 1)
            )
            first, last = seen.column_span
            for y in lines:
                chop = chops[y]
                inside = [cut for cut in cuts[y] if first <= cut <= last]
                pieces = strips[y - lines[0]].divide([cut - first for cut in inside[1:]])
                for cut, piece in zip(inside, pieces, strict=False):
                    if chop.get(cut) is None:
                        chop[cut] = piece
                if None not in chop.values():
                    open_lines.discard(y)
        return cast("Sequence[Mapping[int, Strip]]", chops)

    def lines(self, wanted: Sequence[int]) -> dict[int, Strip]:
        """These lines of the screen, as they would be drawn now."""
        from textual.strip import Strip

        if not wanted:
            return {}
        crop = Region(0, min(wanted), self.size.width, max(wanted) - min(wanted) + 1)
        chops = self._render_chops(crop, set(wanted).__contains__)
        return {y: Strip.join(chops[y].values()) for y in wanted if y < len(chops)}
