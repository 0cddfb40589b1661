"""The rules, one file each: `ls rules` is the index."""
