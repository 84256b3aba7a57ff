"""The custom images of a platform, from the file in its data folder or that of the setting `images`."""

from headrace.core.errors import SettingsError
from headrace.platform.control.model.images import OwnImage
from headrace.platform.control.model.own_images import read_own_images
from headrace.platform.host.folders import DataFolder
from headrace.serving.settings.platform_settings import PlatformSettings


def configured_images(settings: PlatformSettings, folder: DataFolder) -> dict[str, OwnImage]:
    """Return the custom images, by repository. Raises `SettingsError`: their file cannot be read."""
    path = settings.images or folder.images
    others = {"*": OwnImage(is_container=True)} if settings.containers else {}
    if settings.images is None and not path.exists():
        return others
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(f"images is {path}, which cannot be read: {why}.", name="images") from error
    return others | read_own_images(text, source=str(path))
