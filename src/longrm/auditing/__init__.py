"""`longrm audit`: the contents of a data set and its problems, before anything is trained or measured on it."""

from longrm.auditing.data_set_audit import AuditSettings, DataSetAudit, audit
from longrm.auditing.rendering import as_html, as_text

__all__ = ["AuditSettings", "DataSetAudit", "as_html", "as_text", "audit"]
