"""What actions do that are neither a page nor a page's own affair: each is a function of a module of its own."""

DEEDS: dict[str, str] = {
    "columns": "console.list_deeds:columns",
    "sort": "console.list_deeds:sort",
    "mark_range": "console.list_deeds:mark_range",
    "mark_all": "console.list_deeds:mark_all",
    "still": "console.list_deeds:freeze",
    "theme": "console.looks:choose",
    "bookmark": "console.bookmarks:bookmark",
    "forget_bookmark": "console.bookmarks:forget",
    "copy": "console.copying:copy",
    "export": "console.exporting:export",
    "save_report": "console.report_file:save",
    "edit_report": "console.report_file:edit",
    "approve_policy": "console.policy_deeds:approve_policy",
    "reject_policy": "console.policy_deeds:reject_policy",
    "set_freeze": "console.policy_deeds:freeze",
    "end_freeze": "console.policy_deeds:thaw",
    "close_review": "console.policy_deeds:close_review",
    "retry_intent": "console.intent_deeds:retry",
    "settle_done": "console.intent_deeds:settle_done",
    "settle_undone": "console.intent_deeds:settle_undone",
    "approve_runbook": "console.policy_deeds:approve_runbook",
    "retire_runbook": "console.policy_deeds:retire_runbook",
}
"""Action id -> `module:function`, called as `function(app, argument)`: `argument` is what stands behind its name in the
`:` bar, empty for a key. Raises SpecError for an argument it cannot read; whatever takes time it runs as a worker of
the app. The module is loaded when it is first wanted."""
