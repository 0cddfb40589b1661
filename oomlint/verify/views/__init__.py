"""Shows records of runs as one page of HTML that needs neither a network nor scripts."""
