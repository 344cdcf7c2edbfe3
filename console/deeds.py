"""What actions do that are neither a page nor a page's own affair: each is a function of a module of its own."""

DEEDS: dict[str, str] = {}
"""Action id -> `module:function`, called as `function(app, argument)`: `argument` is what stands behind its name in the
`:` bar, empty for a key. Raises SpecError for an argument it cannot read; whatever takes time it runs as a worker of
the app. The module is loaded when it is first wanted."""
