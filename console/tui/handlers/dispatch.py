"""What actions do that are neither a page nor a page's own affair: each is a function of a module of its own."""

DEEDS: dict[str, str] = {
    "columns": "console.tui.handlers.lists:columns",
    "sort": "console.tui.handlers.lists:sort",
    "mark_range": "console.tui.handlers.lists:mark_range",
    "mark_all": "console.tui.handlers.lists:mark_all",
    "still": "console.tui.handlers.lists:freeze",
    "theme": "console.tui.handlers.theme:choose",
    "bookmark": "console.tui.bookmarks:bookmark",
    "forget_bookmark": "console.tui.bookmarks:forget",
    "copy": "console.tui.handlers.copying:copy",
    "export": "console.tui.handlers.exporting:export",
    "save_report": "console.cli.approvals.report_files:save",
    "edit_report": "console.cli.approvals.report_files:edit",
    "approve_policy": "console.tui.handlers.policy:approve_policy",
    "reject_policy": "console.tui.handlers.policy:reject_policy",
    "set_freeze": "console.tui.handlers.policy:freeze",
    "end_freeze": "console.tui.handlers.policy:thaw",
    "close_review": "console.tui.handlers.policy:close_review",
    "retry_intent": "console.tui.handlers.intents:retry",
    "settle_done": "console.tui.handlers.intents:settle_done",
    "settle_undone": "console.tui.handlers.intents:settle_undone",
    "approve_runbook": "console.tui.handlers.policy:approve_runbook",
    "retire_runbook": "console.tui.handlers.policy:retire_runbook",
}
"""Action id -> `module:function`, called as `function(app, argument)`: `argument` is what stands behind its name in the
`:` bar, empty for a key. Raises SpecError for an argument it cannot read; whatever takes time it runs as a worker of
the app. The module is loaded when it is first wanted."""
