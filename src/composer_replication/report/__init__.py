"""Pages for people: a run, or the audit of one's own logs, as plain values (data, run, work) and as
one HTML file. Imports core only."""
