"""One module an output format; each turns results into lines and knows nothing of the terminal."""
