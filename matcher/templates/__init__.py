"""Find templates in a scene: survey all poses on a small picture, settle the best on the full one."""

from matcher.templates.finder import (
    FindOptions,
    TemplateReport,
    TemplateSearch,
    find,
    search,
)
from matcher.templates.poses import overlap

__all__ = ["FindOptions", "TemplateReport", "TemplateSearch", "find", "overlap", "search"]
