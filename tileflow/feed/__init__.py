"""Feeding: rows of data sets of somebody's own, read by this process, a thread of it or worker processes, which import no more than this."""
