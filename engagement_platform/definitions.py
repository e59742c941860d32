"""The one Dagster entry point: merges what `defs/` declares and binds the platform's resource.

Importing it opens nothing. Loading the definitions opens the folders of declared tables and of declared game events and
fetches secrets, where the settings name them: all other settings are read by the runs and sensors themselves.
"""

from __future__ import annotations

import os

import dagster as dg

from engagement_platform.defs import (
    alerts,
    checks,
    engagement,
    erase,
    games,
    layout,
    live_ops,
    maintenance,
    mutation,
    page_views,
    quarantine,
    restore,
    retention,
    shared_drain,
    verification,
)
from engagement_platform.defs.components import folder_definitions
from engagement_platform.defs.entity import PROFILES
from engagement_platform.defs.platform import bound_platform, pyspark
from engagement_platform.defs.specs import GROUP
from engagement_platform.pipelines.declarations.declared import declarations
from engagement_platform.settings import Settings


def _settings() -> Settings:
    """With the secrets that `dagster.secrets` names in the environment of this process. Raises what AWS refuses."""
    settings = Settings()
    if not settings.dagster.secrets:
        return settings
    from dagster_aws.secretsmanager import SecretsManagerSecretsResource

    # boto3 does not read AWS_REGION, which everything else goes by.
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    found = SecretsManagerSecretsResource(secrets=settings.dagster.secrets, region_name=region).fetch_secrets()
    os.environ.update({name.rpartition("/")[2]: value for name, value in found.items()})
    return Settings()


@dg.definitions
def defs() -> dg.Definitions:
    """Everything that Dagster runs. In-process: each run is one Spark client, not one for each step."""
    os.umask(0o077)  # as the command line does: what runs write into the home folder is for its owner only
    resources = {"platform": bound_platform(), "pyspark": pyspark}
    bound = dg.Definitions(resources=resources, executor=dg.in_process_executor)
    settings = _settings()
    # First, since Dagster would say less well that two declarations want the same name.
    on, declared = settings.pipelines, declarations(settings)
    # Named one by one rather than found by walking a folder: that needs a project file beside the package, and an
    # installed package has none.
    modules = (
        *(maintenance, retention, restore, erase, quarantine, layout, alerts, shared_drain),
        *((engagement, mutation, checks, verification) if on.engagements else ()),
        *((games, live_ops) if on.games else ()),
        *((page_views,) if on.page_views and not declared.page_views else ()),
    )
    parts = [module.definitions() for module in modules]
    if on.profiles:
        parts.append(PROFILES.definitions())
    if settings.defs_folder is not None:
        parts.append(folder_definitions(settings.defs_folder))
    named = settings.dagster
    overdue = dg.FreshnessPolicy.time_window(fail_window=named.overdue_after)

    def completed(spec: dg.AssetSpec) -> dg.AssetSpec:
        lands = "spark" in spec.kinds and spec.group_name in (GROUP, PROFILES.entity.name)
        spec = spec.replace_attributes(freshness_policy=overdue) if lands else spec
        return spec.replace_attributes(owners=spec.owners or named.owners)

    whole = dg.Definitions.merge(*parts, bound)
    # Its own method for this is a preview and warns (Dagster 1.13).
    return dg.Definitions(
        assets=dg.map_asset_specs(completed, whole.assets or ()),  # type: ignore[arg-type]
        asset_checks=whole.asset_checks,
        jobs=whole.jobs,
        schedules=whole.schedules,
        sensors=whole.sensors,
        resources=whole.resources,
        executor=whole.executor,
    )
