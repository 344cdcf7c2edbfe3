"""What puts widgets together to a picture of the screen, without drawing what is covered anyway.

Textual has every widget draw all its lines and cuts them to pieces, from the front to the back, before it sees that
something in front is there already. Of a page that is mostly the containers behind it, each as large as the screen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import cast

from textual._compositor import Compositor
from textual.geometry import Region
from textual.strip import Strip


class LeanCompositor(Compositor):
    """Textual's: it only ends sooner."""

    def _render_chops(self, crop: Region, is_rendered_line: Callable[[int], bool]) -> Sequence[Mapping[int, Strip]]:
        cuts = self.cuts
        chops: list[dict[int, Strip | None]] = [dict.fromkeys(line[:-1]) for line in cuts]
        missing = {
            y: {cut for cut, end in pairwise(cuts[y]) if cut < crop.right and end > crop.x}
            for y in crop.line_range
            if y < len(cuts) and is_rendered_line(y)
        }
        for widget, (region, clip) in self.visible_widgets.items():
            seen = region.intersection(clip)
            lines = [y for y in seen.line_range if y in missing] if crop.overlaps(seen) else []
            if not lines:
                continue
            top = lines[0]
            drawn = widget.render_lines(Region(seen.x - region.x, top - region.y, seen.width, lines[-1] - top + 1))
            # What is just being laid out may have fewer lines than it has room for, or shorter ones.
            for y, strip in zip(range(top, lines[-1] + 1), drawn, strict=False):
                if y not in missing:
                    continue
                inside = [cut for cut in cuts[y] if seen.x <= cut <= seen.right]
                pieces = strip.divide([cut - seen.x for cut in inside[1:]])
                for cut, piece in zip(inside, pieces, strict=False):
                    if chops[y][cut] is None:
                        chops[y][cut] = piece
                    missing[y].discard(cut)
                if not missing[y]:
                    del missing[y]
            if not missing:
                break
        return cast("Sequence[Mapping[int, Strip]]", chops)

    def lines(self, wanted: Sequence[int]) -> dict[int, Strip]:
        """These lines of the screen, as they would be drawn now."""
        if not wanted:
            return {}
        crop = Region(0, min(wanted), self.size.width, max(wanted) - min(wanted) + 1)
        chops = self._render_chops(crop, set(wanted).__contains__)
        return {y: Strip.join(chops[y].values()) for y in wanted if y < len(chops)}
