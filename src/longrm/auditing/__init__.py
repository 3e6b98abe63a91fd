"""`longrm audit`: what is in a data set, and what is wrong with it, before anything is trained or measured on it."""

from longrm.auditing.data_set_audit import audit
from longrm.auditing.rendering import as_html, as_text
from longrm.auditing.result import AuditSettings, DataSetAudit

__all__ = ["AuditSettings", "DataSetAudit", "as_html", "as_text", "audit"]
