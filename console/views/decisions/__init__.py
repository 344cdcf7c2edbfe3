"""Views of proposals, policies, runbooks, drafts and the audit log. Imports text and `runbooks`' answers. Start at
`proposal`."""
