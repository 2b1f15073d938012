"""Host lowering: a Program's graphs become rows of leaf calls over planned memory."""
