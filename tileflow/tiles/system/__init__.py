"""Beyond one chip: several IPUs and their links, replicas, streaming memory."""
