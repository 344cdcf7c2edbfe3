"""The parts that pages are made of: panes, lists, tables, the frame and the bars. It imports actions, views, client,
forms and text of the console, and no page. Start at `pane`, then read `list_pane`."""
