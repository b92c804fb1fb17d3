"""Audio and video become tensors; damaged and hostile files are refused or skipped."""

import io
from typing import Any

import numpy as np
import pytest

from zindex.errors import ConfigError, SourceError
from zindex.processing.media_samples import AudioClips, VideoFrames

soundfile = pytest.importorskip("soundfile")
av = pytest.importorskip("av")


def write_audio(
    num_frames: int, *, channels: int = 2, rate: int = 8000, kind: str = "WAV"
) -> bytes:
    values = np.linspace(-0.5, 0.5, num_frames * channels, dtype=np.float32)
    stream = io.BytesIO()
    soundfile.write(stream, values.reshape(-1, channels), rate, format=kind)
    return stream.getvalue()


def write_video(num_frames: int, size: int = 32) -> bytes:
    stream = io.BytesIO()
    with av.open(stream, "w", format="mp4") as container:
        video = container.add_stream("mpeg4", rate=10)
        video.width = video.height = size
        for number in range(num_frames):
            pixels = np.full((size, size, 3), 25 * number, np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            container.mux(video.encode(frame))
        container.mux(video.encode())
    return stream.getvalue()


def sample_of(**fields: Any) -> dict[str, Any]:
    return {"__url__": "a.tar", "__key__": "7", **fields}


@pytest.mark.parametrize("kind", ["WAV", "FLAC"])
def test_recordings(kind: str) -> None:
    content = write_audio(100, kind=kind)
    made = AudioClips()(sample_of(**{kind.lower(): content}, text="a"))
    assert made["audio"].shape == (2, 100)
    assert made["audio"].min() == pytest.approx(-0.5, abs=1e-3)
    assert (made["sample_rate"], made["num_frames"], made["text"]) == (8000, 100, "a")
    assert kind.lower() not in made
    short = AudioClips(num_frames=120, mono=True)(sample_of(wav=content))
    assert short["audio"].shape == (1, 120)
    assert short["num_frames"] == 100
    assert not short["audio"][:, 100:].any()


def test_random_clips_are_those_of_the_sample() -> None:
    labels = {"__seed__": 1, "__datasetname__": "a", "__epoch__": 0}
    sample = sample_of(wav=write_audio(1000), **labels)
    first = AudioClips(num_frames=10, clip="random")(sample)["audio"]
    assert AudioClips(num_frames=10, clip="random")(sample)["audio"].equal(first)
    other = AudioClips(num_frames=10, clip="random")({**sample, "__epoch__": 1})["audio"]
    assert not other.equal(first)


def test_a_recording_whose_size_its_writer_did_not_know() -> None:
    content = write_audio(50)
    for size in (b"\xff\xff\xff\xff", (len(content) - 7).to_bytes(4, "little")):
        piped = content[:4] + size + content[8:]
        assert AudioClips()(sample_of(wav=piped))["num_frames"] == 50


def test_frames() -> None:
    content = write_video(9)
    made = VideoFrames(3, step=2)(sample_of(mp4=content))
    assert made["video"].shape == (3, 3, 32, 32)
    assert made["frame_times"].tolist() == pytest.approx([0, 0.2, 0.4])
    levels = made["video"].double().mean(dim=(1, 2, 3)).tolist()
    assert levels == pytest.approx([0, 50, 100], abs=6)
    small = VideoFrames(50, img_size=(8, 16))(sample_of(mp4=content))
    assert small["video"].shape == (9, 3, 8, 16)


@pytest.mark.parametrize(
    ("function", "sample", "message"),
    [
        (AudioClips(max_values=99), {"wav": write_audio(50)}, "50 frames of 2 channels, more than"),
        (AudioClips(sample_rate=16000), {"wav": write_audio(5)}, "8000 frames per second, not 160"),
        (AudioClips(), {"wav": b"RIFF"}, "must have a readable audio file"),
        (
            AudioClips(),
            {"wav": write_audio(50)[:-20]},
            "audio file: it ends after 224 of 244 bytes",
        ),
        (AudioClips(num_frames=9), {"wav": write_audio(0)}, "audio file: it has no frames"),
        (AudioClips(), {"wav": "a.wav"}, "it must be bytes, got str"),
        (AudioClips(), {"txt": "a"}, "audio must be under one of"),
        (
            VideoFrames(2, max_pixels=1000),
            {"mp4": write_video(2)},
            "must have a readable video file",
        ),
        (VideoFrames(2), {"mp4": write_video(2)[:-300]}, "a readable video file"),
        (
            VideoFrames(2),
            {"mp4": b"#EXTM3U\nfile:///etc/passwd\n"},
            "must have a readable video file",
        ),
    ],
)
def test_damaged_and_hostile_files(function: Any, sample: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        function(sample_of(**sample))
    function.on_damage = "skip"
    assert list(function([sample_of(**sample)])) == []
    assert function.num_skipped == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AudioClips(clip="random"), "needs the length of a clip; set num_frames"),
        (lambda: AudioClips(num_frames=0), "num_frames must be a whole number of at least 1"),
        (lambda: VideoFrames(1, video_fields=["gif"]), "video_fields must be one of mp4, mov"),
        (lambda: VideoFrames(1, img_size=5), r"img_size must be \(height, width\), got 5"),  # type: ignore[arg-type]
        (lambda: VideoFrames(1, video_fields="mp4"), "video_fields must be a list, got the text"),
        (lambda: AudioClips(audio_fields="wav"), "audio_fields must be a list, got the text 'wav'"),
        (lambda: VideoFrames(1, img_size=(1, 2, 3)), r"img_size must be \(height, width\)"),
    ],
)
def test_refused_settings(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
