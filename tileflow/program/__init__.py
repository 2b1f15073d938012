"""The Program, which both consumers of a model share, and what it is made of as data: schedule, staging, replicas,
files."""
