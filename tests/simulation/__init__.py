"""The real core and the real store on virtual time: many lives, each from a seed."""
