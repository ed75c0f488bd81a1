"""The HTTP API, served on the control socket."""
