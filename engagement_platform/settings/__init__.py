"""Every setting of the platform, once: type, default, unit and why. One module per section.

Values come from `ENGAGEMENT_PLATFORM_*` variables (nested with `__`), then `platform.toml` in the working
directory (or the file that `ENGAGEMENT_PLATFORM_CONFIG` names), then the defaults here, which run everything
on one machine. `docs/settings.md` is generated from these classes. Nothing here opens, starts or connects.
"""

from __future__ import annotations

import difflib
import fcntl
import os
import tomllib
from collections.abc import Iterable
from pathlib import Path

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from engagement_platform.settings.games import GamesSettings, IngestServerSettings, LiveOpsSettings, PiiSettings
from engagement_platform.settings.operations import (
    AlertingSettings,
    ConsumerSettings,
    DagsterSettings,
    QualitySettings,
    SeverityName,
)
from engagement_platform.settings.pipelines import (
    ApplyStrategy,
    BatchSettings,
    DecodingSettings,
    DrainSettings,
    MergeOnReadSettings,
    MessageField,
    MutationSettings,
    PageViewsSettings,
    PipelinesSettings,
    RematerializeMethod,
    RematerializeSettings,
    UnknownUpdate,
    ViewStrategy,
)
from engagement_platform.settings.section import Section
from engagement_platform.settings.services import (
    EmbeddedSettings,
    KafkaSettings,
    SparkSettings,
    StoreSettings,
    TrafficSettings,
)
from engagement_platform.settings.tables import HealthSettings, LayoutScheme, LayoutSettings, MaintenanceSettings

__all__ = [
    "BROKER_RECORD", "ENV_PREFIX", "AlertingSettings", "ApplyStrategy", "BatchSettings", "ConsumerSettings",
    "DagsterSettings", "DecodingSettings", "DrainSettings", "EmbeddedSettings", "GamesSettings", "HealthSettings",
    "IngestServerSettings",
    "KafkaSettings", "LayoutScheme", "LayoutSettings", "LiveOpsSettings", "MaintenanceSettings", "MergeOnReadSettings",
    "MessageField", "MutationSettings", "PageViewsSettings", "PiiSettings", "PipelinesSettings", "QualitySettings",
    "RematerializeMethod", "RematerializeSettings", "Section", "Settings", "SeverityName", "SparkSettings",
    "StoreSettings", "TrafficSettings", "UnknownUpdate", "ViewStrategy", "refusal",
]  # fmt: skip

ENV_PREFIX = "ENGAGEMENT_PLATFORM_"
_CONFIG = f"{ENV_PREFIX}CONFIG"
BROKER_RECORD = "broker.address"
"""File in the home folder with the address of the embedded broker; true while `embedded.lock` is held."""


def _data_home() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "engagement-platform"


class Settings(Section, BaseSettings):
    """All settings. Construct it where a process starts and hand it on; reading it again may read other values."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, env_nested_delimiter="__")

    home_shared: bool = False
    """Whether a home that others can enter, or that is another user's, is accepted, such as a volume of Kubernetes.
    Otherwise it is refused: keys are in it. Files that commands and runs of Dagster make there are for their owner
    only, whatever this says; of those that a program of yours makes, files of tables go by its umask, in folders for
    the owner only where they are `pii/*`."""
    home: Path = Field(default_factory=_data_home)
    """All local state: stores, broker data, Dagster, lake."""
    lake_uri: str | None = None
    """Root of the Delta tables: a folder, or s3a://bucket/prefix. Not set: <home>/lake."""
    defs_folder: Path | None = None
    """Folder whose `defs.yaml` files, at any depth, declare tables of your own (docs/tutorial.md). They are part of
    everything: Dagster, `run`, `status`. Relative to the working directory."""
    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    spark: SparkSettings = Field(default_factory=SparkSettings)
    stores: StoreSettings = Field(default_factory=StoreSettings)
    batch: BatchSettings = Field(default_factory=BatchSettings)
    drain: DrainSettings = Field(default_factory=DrainSettings)
    decoding: DecodingSettings = Field(default_factory=DecodingSettings)
    layout: LayoutSettings = Field(default_factory=LayoutSettings)
    mutation: MutationSettings = Field(default_factory=MutationSettings)
    merge_on_read: MergeOnReadSettings = Field(default_factory=MergeOnReadSettings)
    rematerialize: RematerializeSettings = Field(default_factory=RematerializeSettings)
    quality: QualitySettings = Field(default_factory=QualitySettings)
    health: HealthSettings = Field(default_factory=HealthSettings)
    maintenance: MaintenanceSettings = Field(default_factory=MaintenanceSettings)
    consumers: ConsumerSettings = Field(default_factory=ConsumerSettings)
    alerting: AlertingSettings = Field(default_factory=AlertingSettings)
    ingest_server: IngestServerSettings = Field(default_factory=IngestServerSettings)
    pii: PiiSettings = Field(default_factory=PiiSettings)
    games: GamesSettings = Field(default_factory=GamesSettings)
    pipelines: PipelinesSettings = Field(default_factory=PipelinesSettings)
    page_views: PageViewsSettings = Field(default_factory=PageViewsSettings)
    live_ops: LiveOpsSettings = Field(default_factory=LiveOpsSettings)
    dagster: DagsterSettings = Field(default_factory=DagsterSettings)
    traffic: TrafficSettings = Field(default_factory=TrafficSettings)
    embedded: EmbeddedSettings = Field(default_factory=EmbeddedSettings)

    @property
    def lake(self) -> str:
        """Root of the Delta tables without a trailing slash: a URI with a scheme, or an absolute path.

        Without symbolic links, since locks and cursors go by it.
        """
        uri = self.lake_uri or str(self.home / "lake")
        return (uri if "://" in uri else str(Path(uri).expanduser().resolve())).rstrip("/")

    @property
    def store_url(self) -> str:
        """SQLAlchemy URL of the stores; holds a password in production, so never log it."""
        if self.stores.url is not None:
            return self.stores.url.get_secret_value()
        return f"sqlite:///{self.home.expanduser().absolute() / 'stores.db'}"

    @field_validator("home")
    @classmethod
    def _is_private(cls, home: Path, info: ValidationInfo) -> Path:
        if home == Path():
            raise ValueError("an empty one would be the folder that each command is called in; name a folder")
        try:
            folder = home.expanduser()
        except RuntimeError as error:
            raise ValueError(f"{home}: {error}") from None
        if info.data.get("home_shared") or not folder.is_dir():
            return home
        found, meant = folder.stat(), f"or set {ENV_PREFIX}HOME_SHARED=true where that is meant"
        if (mode := found.st_mode & 0o777) & 0o077:
            raise ValueError(
                f"others can enter {folder} (mode {mode:o}), which holds keys and personal data; chmod 700 it, {meant}"
            )
        # Its owner could read, and replace, the keys that another user, such as root, puts there.
        if found.st_uid not in (os.geteuid(), 0):
            raise ValueError(
                f"{folder}, which holds keys and personal data, is of user {found.st_uid}; chown it, {meant}"
            )
        return home

    @field_validator("kafka")
    @classmethod
    def _with_embedded_broker(cls, kafka: KafkaSettings, info: ValidationInfo) -> KafkaSettings:
        if kafka.bootstrap_servers is not None or "home" not in info.data:
            return kafka
        return kafka.model_copy(update={"bootstrap_servers": _embedded_broker(info.data["home"].expanduser())})

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        for variable in (name.upper() for name in os.environ if name.upper().startswith(ENV_PREFIX)):
            name = variable.removeprefix(ENV_PREFIX).partition("__")[0].lower()
            if name not in cls.model_fields and variable != _CONFIG:
                raise SettingsError(f"{variable} names no setting{_nearest(name, cls.model_fields)}")
        file = _file()
        if os.environ.get(_CONFIG) and not file.is_file():
            raise SettingsError(f"{_CONFIG} names {file}, which is no file")
        try:
            toml = TomlConfigSettingsSource(settings_cls, file)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            raise SettingsError(f"{file}: {error}") from None
        return init_settings, env_settings, toml


def _file() -> Path:
    return Path(os.environ.get(_CONFIG) or "platform.toml")


def _embedded_broker(home: Path) -> str | None:
    """The address that the services on this home have recorded; None once nothing holds the home's lock any more."""
    try:
        with (home / "embedded.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        record = home / BROKER_RECORD
        return record.read_text() if record.is_file() else None
    except OSError:
        pass
    return None


def refusal(error: ValueError) -> str | None:
    """A sentence for settings that cannot be used, None for any other error. Values are left out: some are secrets."""
    if isinstance(error, SettingsError):
        return f"Settings cannot be used: {error}. Nothing was started."
    if not isinstance(error, ValidationError) or error.title != "Settings":
        return None
    wrong = []
    for problem in error.errors(include_input=False, include_url=False):
        what, model = problem["msg"].removeprefix("Value error, "), Settings
        if problem["type"] == "extra_forbidden":
            for step in problem["loc"][:-1]:
                model = getattr(model, "model_fields", {})[step].annotation
            what = f"there is no such setting{_nearest(str(problem['loc'][-1]), getattr(model, 'model_fields', {}))}"
        elif problem["type"].startswith("time_delta"):
            what = "a duration such as PT20S, PT10M, P7D or 00:00:20 is needed"
        wrong.append(f"{ENV_PREFIX}{'__'.join(map(str, problem['loc'])).upper()}: {what}")
    return f"Settings cannot be used (variable or line of {_file()}): {'; '.join(wrong)}. Nothing was started."


def _nearest(name: str, names: Iterable[str]) -> str:
    found = difflib.get_close_matches(name.lower(), names, 1)
    return f"; the nearest is {found[0]}" if found else ""
