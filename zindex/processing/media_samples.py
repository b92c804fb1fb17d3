"""Process functions that decode audio and video of tar samples, with limits for hostile files."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any, Literal, get_args

import numpy as np
import torch

from zindex.errors import ConfigError, check_choice, check_list, check_whole
from zindex.lazy import need
from zindex.processing.image_samples import MAX_PIXELS, PerSample, find_field
from zindex.processing.sample_generator import sample_generator
from zindex.sources.damage_log import OnDamage

Sample = dict[str, Any]
#: Where a clip begins in its recording.
ClipStart = Literal["first", "random"]

_INSTALL = "zindex[media]"
#: Default limit of the decoded values of a recording: 20 minutes in stereo at 48 kHz.
MAX_VALUES = 20 * 60 * 2 * 48_000
# Least size that programs write into a WAV file whose end they do not know.
_UNKNOWN_NBYTES = 0x7FFF_0000
# Containers by the name of the field. They are not guessed, because some formats, such as
# playlists, refer to other files.
_CONTAINERS = {"mp4": "mp4", "mov": "mp4", "webm": "matroska", "mkv": "matroska", "avi": "avi"}


class AudioClips(PerSample):
    """Process function that decodes the recording of a sample.

    Parameters
    ----------
    audio_fields
        Names of the audio field; the first one that a sample has is used.
    num_frames
        Frames of a clip (values per channel); shorter recordings are padded with zeros. None takes
        the whole recording.
    clip
        ``"first"`` takes the first frames, ``"random"`` a random clip, the same one whenever the
        sample is read in its epoch; see `zindex.processing.sample_generator.sample_generator`.
    sample_rate
        Frames per second that a recording must have, which is not resampled; None allows any.
    mono
        Whether to average the channels.
    on_damage
        ``"skip"`` skips samples with missing, damaged or refused audio, and counts them in
        ``num_skipped``; ``"error"`` raises.
    max_values
        Maximum values of a recording, of all channels; a small file can decode to gigabytes.

    Raises
    ------
    ConfigError
        If an argument is invalid, or soundfile is missing.

    Notes
    -----
    Samples have ``audio`` (float32, shape (channels, frames), -1 to 1), ``sample_rate`` (int),
    ``num_frames`` (int, those that are no padding), and the other fields of the raw sample.
    """

    content = "audio file"

    def __init__(
        self,
        *,
        audio_fields: Sequence[str] = ("wav", "flac", "mp3", "ogg"),
        num_frames: int | None = None,
        clip: ClipStart = "first",
        sample_rate: int | None = None,
        mono: bool = False,
        on_damage: OnDamage = "error",
        max_values: int = MAX_VALUES,
    ) -> None:
        super().__init__(on_damage)
        check_choice("clip", clip, get_args(ClipStart))
        if num_frames is not None:
            check_whole("num_frames", num_frames, 1)
        elif clip == "random":
            raise ConfigError("clip='random' needs the length of a clip; set num_frames")
        if sample_rate is not None:
            check_whole("sample_rate", sample_rate, 1)
        need("soundfile", "decoding audio", _INSTALL)
        check_list("audio_fields", audio_fields)
        self.audio_fields, self.num_frames, self.clip = tuple(audio_fields), num_frames, clip
        self.sample_rate, self.mono = sample_rate, mono
        self.max_values = check_whole("max_values", max_values, 1)

    def make(self, sample: Mapping[str, Any]) -> Sample:
        """Return a sample with its recording as a tensor."""
        content = _check_bytes(find_field(sample, self.audio_fields, "audio"))
        _check_whole_wave(content)
        soundfile = need("soundfile", "decoding audio", _INSTALL)
        with soundfile.SoundFile(BytesIO(content)) as recording:
            total, channels, rate = recording.frames, recording.channels, recording.samplerate
            if not total:
                raise ValueError("it has no frames")
            wanted = self.num_frames or total
            if max(total, wanted) * channels > self.max_values:
                raise ValueError(
                    f"it has {total:,} frames of {channels} channels, more than "
                    f"{self.max_values:,} values"
                )
            if self.sample_rate not in (None, rate):
                raise ValueError(f"it has {rate} frames per second, not {self.sample_rate}")
            if self.clip == "random" and total > wanted:
                generator = sample_generator(sample, use="clip")
                recording.seek(int(generator.integers(total - wanted + 1)))
            found = recording.read(min(wanted, total), dtype="float32", always_2d=True)
        if self.mono:
            found = found.mean(axis=1, keepdims=True, dtype=np.float32)
        audio = np.zeros((found.shape[1], self.num_frames or len(found)), np.float32)
        audio[:, : len(found)] = found.T
        rest = {key: value for key, value in sample.items() if key not in self.audio_fields}
        facts = {"sample_rate": rate, "num_frames": len(found)}
        return rest | {"audio": torch.from_numpy(audio), **facts}


class VideoFrames(PerSample):
    """Process function that decodes frames of the video of a sample.

    Parameters
    ----------
    num_frames
        Most frames to decode, from the first one; a shorter video has fewer.
    img_size
        (height, width) of frames; None keeps their size.
    step
        1 takes every frame, k every k-th.
    video_fields
        Names of the video field, among ``mp4``, ``mov``, ``webm``, ``mkv`` and ``avi``, which also
        determine the container; the first one that a sample has is used.
    on_damage
        ``"skip"`` skips samples with missing, damaged or refused video, and counts them in
        ``num_skipped``; ``"error"`` raises.
    max_pixels
        Maximum number of pixels of a frame, and of all frames of a sample together 64 times it.

    Raises
    ------
    ConfigError
        If an argument is invalid, or PyAV is missing.

    Notes
    -----
    Samples have ``video`` (uint8, shape (frames, 3, height, width)), ``frame_times`` (float64,
    shape (frames,), seconds), and the other fields of the raw sample.
    """

    content = "video file"

    def __init__(
        self,
        num_frames: int,
        *,
        img_size: tuple[int, int] | list[int] | None = None,
        step: int = 1,
        video_fields: Sequence[str] = tuple(_CONTAINERS),
        on_damage: OnDamage = "error",
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        super().__init__(on_damage)
        self.num_frames = check_whole("num_frames", num_frames, 1)
        self.step = check_whole("step", step, 1)
        check_list("video_fields", video_fields)
        for field in video_fields:
            check_choice("video_fields", field, _CONTAINERS)
        if img_size is not None and (isinstance(img_size, int | str) or len(img_size) != 2):
            raise ConfigError(f"img_size must be (height, width), got {img_size!r}")
        self.sides = [check_whole("img_size", side, 1) for side in img_size or ()]
        self.video_fields = tuple(video_fields)
        self.max_pixels = check_whole("max_pixels", max_pixels, 1)
        need("av", "decoding video", _INSTALL)

    def make(self, sample: Mapping[str, Any]) -> Sample:
        """Return a sample with frames of its video as a tensor."""
        content = _check_bytes(find_field(sample, self.video_fields, "a video"))
        field = next(name for name in self.video_fields if sample.get(name) is not None)
        frames, times = self._decode(content, _CONTAINERS[field])
        video = torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2).contiguous()
        rest = {key: value for key, value in sample.items() if key not in self.video_fields}
        return rest | {"video": video, "frame_times": torch.tensor(times, dtype=torch.float64)}

    def _decode(self, content: bytes, container: str) -> tuple[list[Any], list[float]]:
        """Return frames, each of shape (height, width, 3), and their times in seconds."""
        av = need("av", "decoding video", _INSTALL)
        frames: list[Any] = []
        times: list[float] = []
        num_pixels = 0
        with av.open(BytesIO(content), format=container) as opened:
            if not opened.streams.video:
                raise ValueError("it has no video")
            stream = opened.streams.video[0]
            # Checked before the decoder allocates a frame, whose size may change.
            stream.codec_context.options = {"max_pixels": str(self.max_pixels)}
            stream.codec_context.thread_count = 1
            for number, frame in enumerate(opened.decode(stream)):
                if number % self.step:
                    continue
                height, width = self.sides or (frame.height, frame.width)
                num_pixels += height * width
                if frame.height * frame.width > self.max_pixels or (
                    num_pixels > 64 * self.max_pixels
                ):
                    raise ValueError(f"frames of {width} x {height} pixels are too large")
                scaled = frame.reformat(width=width, height=height, format="rgb24")
                frames.append(scaled.to_ndarray())
                times.append(float(frame.time or 0))
                if len(frames) == self.num_frames:
                    break
        if not frames:
            raise ValueError("it has no frames")
        return frames, times


def _check_bytes(content: Any) -> bytes:
    if not isinstance(content, bytes | bytearray | memoryview):
        raise ValueError(f"it must be bytes, got {type(content).__name__}")
    return bytes(content)


def _check_whole_wave(content: bytes) -> None:
    """Raise ValueError for a cut WAV file, of which the decoder would return what is left."""
    nbytes = 8 + int.from_bytes(content[4:8], "little")
    # Some programs leave out the last, padding byte.
    if content[:4] == b"RIFF" and len(content) + 1 < nbytes < _UNKNOWN_NBYTES:
        raise ValueError(f"it ends after {len(content):,} of {nbytes:,} bytes")
