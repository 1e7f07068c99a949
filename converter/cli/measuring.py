"""`--profile measured`: costs of this machine in the place of a table's."""

from __future__ import annotations

from dataclasses import replace

from converter.cli.narration import Narrator
from converter.cli.resolve import BuildJob


def measured(job: BuildJob, narrator: Narrator) -> BuildJob:
    """Return the job for the table of this machine, where it asks for one; else as it is.

    Raises:
        UsageError: it asks for a target that this machine cannot be.
    """
    if job.recipe.profile is None:
        return job
    from converter.tools.measure import measured_table

    with narrator.stage("measure this machine"):
        table = measured_table(job.recipe.get("target"))
    return replace(job, recipe=replace(job.recipe.overridden(target=str(table)), profile=None))
