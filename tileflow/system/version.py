"""The version: what files that outlive a process say they were made by."""

VERSION = "0.1.0"
