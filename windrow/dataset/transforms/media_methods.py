"""The transforms of Dataset and DatasetPipeline that decode images, audio and video."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from windrow.core.errors import PlanError
from windrow.core.integers import check_count
from windrow.dataset.argument_checks import check_names
from windrow.dataset.transforms.text_methods import MediaOptions, TextMethods, check_bool
from windrow.io.formats.image_pixels import PixelFormat, check_size, load_pillow
from windrow.io.storage.path_contents import PathReader
from windrow.pipeline.tasks.media.av_errors import load_av
from windrow.pipeline.tasks.media.column_contents import describe_wrong_type
from windrow.pipeline.tasks.media.column_decoder import ColumnDecoder, OnError, check_on_error
from windrow.pipeline.tasks.media.decode_audio import AudioCrop, DecodeAudio
from windrow.pipeline.tasks.media.decode_images import DecodeImages
from windrow.pipeline.tasks.media.decode_video import DecodeVideo, Sampling
from windrow.pipeline.tasks.media.framing import Crop, Framing

if TYPE_CHECKING:
    from typing_extensions import Unpack

Self = TypeVar("Self", bound="MediaMethods")

Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]


@dataclass(frozen=True, repr=False)
class MediaMethods(TextMethods):
    """Base class of what has a logical plan to add transforms to."""

    def decode_images(
        self: Self,
        column: str,
        *,
        size: int | tuple[int, int] | None = None,
        mode: str = "RGB",
        crop: Crop | None = None,
        shorter_side: int | None = None,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip: float = 0.0,
        interpolation: Interpolation = "bilinear",
        exif_orientation: bool = False,
        reducing_gap: float | None = None,
        on_error: OnError = "raise",
        output_column: str | None = None,
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Unpack[MediaOptions],
    ) -> Self:
        """Decode a column of JPEG, PNG, WebP or other images that Pillow reads, and scale, crop and mirror them.

        With ``size``, the column becomes tensors of one shape: batches are (rows, height, width, channels) uint8
        arrays, or (rows, height, width) in modes of one channel. Without it, images keep their sizes, as in
        `read_images`. Null stays null. After the shuffle, compressed bytes are shuffled instead of pixels, and each
        epoch has its own random crops. They depend on the seed, the epoch and the position of the row alone: they are
        the same with other batches and another number of workers or shards, and after a resume. Needs the extra
        ``images``.

        Parameters
        ----------
        column
            A column of bytes, of structs of ``bytes`` and ``path`` as Hugging Face stores images, or of paths or URLs.
        size
            (height, width) in pixels, or one number for both. None: as stored.
        mode
            The Pillow mode of the pixels, as in `read_images`.
        crop
            What becomes of an image of another shape. None: it is stretched to ``size``. ``"center"``: it is scaled
            until its shorter side is ``shorter_side``, and the center is cut out. ``"random"``: the same at a random
            place. ``"random_resized"``: a part of random area and shape is scaled to ``size``.
        shorter_side
            For ``"center"`` and ``"random"``, in pixels, such as 256 with ``size=224``. None: the image just covers
            ``size``.
        scale, ratio
            For ``"random_resized"``: the least and the most of the area of the image, and of width over height of the
            part, as in torchvision's ``RandomResizedCrop``.
        flip
            The probability that an image is mirrored left to right, such as 0.5.
        interpolation
            How images are scaled, by Pillow and with antialiasing; the names are Pillow's.
        exif_orientation
            Whether to turn images as the camera has noted in their EXIF data. Hugging Face's ``datasets`` does;
            torchvision and `read_images` do not.
        reducing_gap
            None: JPEGs are decoded in full. A number of 1 or more, such as 2.0: large ones are decoded at 1/2, 1/4 or
            1/8, as long as they stay so many times as large as the result. That is faster for photos of several
            megapixels, and pixels differ a little. Pillow's name for it.
        on_error
            What becomes of a row whose bytes cannot be decoded. ``"raise"``: the run ends with an error. ``"null"``:
            the row gets null. ``"drop"``: the row is left out, only before the shuffle; random numbers of transforms
            before it are then the same in each epoch. Each process logs the first such row as a warning. Paths that
            cannot be read, another ``mode`` than the image can have, and a decoder that is not installed raise an
            error in any case.
        output_column
            The name of the column of pixels, beside the images. None: it takes the place of ``column``.
        filesystem, storage_options
            Where paths lead, as in `read_parquet`.
        **options
            ``batch_size``, ``compute``, ``num_cpus``, ``num_gpus``, ``memory`` and ``resources``, as in `map_batches`.

        Raises
        ------
        PlanError
            If an argument is invalid, or Pillow is not installed.
        TransformError
            While rows are read, if an image cannot be decoded and ``on_error`` is ``"raise"``; it names the column,
            and the file, row group and row where that is known. ``write_*(failed_rows=)`` puts such rows aside.

        Examples
        --------
        >>> import io, windrow
        >>> from PIL import Image
        >>> def encode(color):
        ...     file = io.BytesIO()
        ...     Image.new("RGB", (40, 30), color).save(file, "JPEG")
        ...     return file.getvalue()
        >>> ds = windrow.from_items([{"image": encode("red"), "label": 0}, {"image": encode("blue"), "label": 1}])
        >>> batch = ds.decode_images("image", size=24, crop="center").take_batch()
        >>> batch["image"].shape, batch["image"].dtype
        ((2, 24, 24, 3), dtype('uint8'))
        >>> pipe = ds.window().random_shuffle_each_window(seed=7)
        >>> pipe = pipe.decode_images("image", size=(16, 24), crop="random_resized", flip=0.5)
        >>> [batch["image"].shape for batch in pipe.iter_torch_batches(batch_size=2)]
        [torch.Size([2, 16, 24, 3])]
        >>> [image.shape for image in ds.decode_images("image").take_batch()["image"]]
        [(30, 40, 3), (30, 40, 3)]
        >>> mixed = windrow.from_items([{"image": encode("red")}, {"image": b"no image"}])
        >>> mixed.decode_images("image", size=24, on_error="drop").count()
        1
        """
        load_pillow("decode_images()")
        self._check_input(column, "decode_images", describe_wrong_type)
        pixels = PixelFormat(mode)
        framing = Framing(
            None if size is None else check_size(size),
            crop,
            shorter_side,
            scale,
            ratio,
            flip,
            interpolation,
        )
        check_bool("exif_orientation", exif_orientation)
        is_number = isinstance(reducing_gap, (int, float)) and not isinstance(reducing_gap, bool)
        if reducing_gap is not None and not (is_number and reducing_gap >= 1):
            raise PlanError(f"reducing_gap={reducing_gap!r} must be a number of 1 or more, or None")
        fn = DecodeImages(
            column,
            _output(column, output_column, "decode_images"),
            PathReader(filesystem, storage_options),
            on_error,
            pixels,
            framing,
            exif_orientation,
            reducing_gap,
        )
        return self._decoded("decode_images", fn, options)

    def decode_audio(
        self: Self,
        column: str,
        *,
        sample_rate: int,
        channels: int = 1,
        samples: int | None = None,
        crop: AudioCrop = "start",
        on_error: OnError = "raise",
        output_column: str | None = None,
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Unpack[MediaOptions],
    ) -> Self:
        """Decode a column of WAV, FLAC, MP3, Ogg or other audio that FFmpeg reads, and resample it.

        Samples are float32, mostly in [-1, 1]. With ``samples``, batches are (rows, samples) arrays, or
        (rows, 2, samples) of stereo. Without it, mono audio becomes lists of several lengths, for which
        ``iter_torch_batches(ragged=)`` says what becomes of them, and stereo a `VariableShapeTensorType` of
        (2, samples). Null stays null. PyAV decodes, with the FFmpeg that its wheels bring: needs the extra ``audio``.

        Parameters
        ----------
        column
            A column of bytes, of structs of ``bytes`` and ``path`` as Hugging Face stores audio, or of paths or URLs.
        sample_rate
            To which all audio is resampled, in hertz, such as 16000.
        channels
            1: mono, to which other audio is mixed. 2: stereo.
        samples
            How many samples each row gets: longer audio is cut, and shorter filled with zeros. None: all.
        crop
            Which part is cut out of longer audio: ``"start"``, ``"center"`` or ``"random"``. Random places depend on
            the position of the row, as in `decode_images`.
        on_error, output_column, filesystem, storage_options, **options
            As in `decode_images`.

        Raises
        ------
        PlanError
            If an argument is invalid, or PyAV is not installed.
        TransformError
            While rows are read, if audio cannot be decoded; it names the column, and the file, row group
            and row where it can be told.

        Examples
        --------
        >>> import io, wave, windrow
        >>> file = io.BytesIO()
        >>> with wave.open(file, "wb") as out:
        ...     out.setparams((1, 2, 8000, 0, "NONE", ""))
        ...     out.writeframes(bytes(2 * 8000))
        >>> ds = windrow.from_items([{"sound": file.getvalue()}])
        >>> ds.decode_audio("sound", sample_rate=16_000, samples=4_000).take_batch()["sound"].shape
        (1, 4000)
        """
        load_av("audio")
        self._check_input(column, "decode_audio", describe_wrong_type)
        fn = DecodeAudio(
            column,
            _output(column, output_column, "decode_audio"),
            PathReader(filesystem, storage_options),
            on_error,
            check_count(sample_rate, "sample_rate"),
            channels,
            None if samples is None else check_count(samples, "samples", "or None for all"),
            crop,
        )
        return self._decoded("decode_audio", fn, options)

    def decode_video(
        self: Self,
        column: str,
        *,
        frames: int,
        sampling: Sampling = "uniform",
        stride: int = 1,
        size: int | tuple[int, int] | None = None,
        mode: Literal["RGB", "L"] = "RGB",
        crop: Crop | None = None,
        shorter_side: int | None = None,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip: float = 0.0,
        interpolation: Interpolation = "bilinear",
        apply_rotation: bool = False,
        on_error: OnError = "raise",
        output_column: str | None = None,
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Unpack[MediaOptions],
    ) -> Self:
        """Decode some frames of a column of MP4, WebM or other videos that FFmpeg reads.

        With ``size``, batches are (rows, frames, height, width, channels) uint8 arrays. Without it, frames keep their
        size, and rows are a `VariableShapeTensorType`. All frames of a row are cropped and mirrored alike. Only what
        lies between the chosen frames and the keyframes before them is decoded. A video with fewer frames than chosen
        repeats some. Null stays null. PyAV decodes, with the FFmpeg that its wheels bring: needs the extra ``video``.

        Parameters
        ----------
        column
            A column of bytes, of structs of ``bytes`` and ``path``, or of paths or URLs.
        frames
            How many frames of each video.
        sampling
            ``"uniform"``: the frame in the middle of each of ``frames`` equal parts of the video. ``"random"``: a
            random frame of each part. ``"clip"``: consecutive frames from the middle of the video. ``"random_clip"``:
            consecutive frames from a random place.
        stride
            For clips: every so many frames; 1 for all.
        size, mode, crop, shorter_side, scale, ratio, flip, interpolation
            As in `decode_images`; random numbers depend on the position of the row.
        apply_rotation
            Turn frames by the multiple of 90 degrees that the file notes, as players do. Phones note one.
        on_error, output_column, filesystem, storage_options, **options
            As in `decode_images`.

        Raises
        ------
        PlanError
            If an argument is invalid, or PyAV is not installed.
        TransformError
            While rows are read, if a video cannot be decoded; it names the column, and the file, row group
            and row where it can be told.

        Examples
        --------
        >>> import av, io, numpy as np, windrow
        >>> file = io.BytesIO()
        >>> with av.open(file, "w", format="mp4") as out:
        ...     stream = out.add_stream("mpeg4", rate=10)
        ...     stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        ...     for number in range(30):
        ...         picture = np.full((48, 64, 3), 8 * number, np.uint8)
        ...         out.mux(stream.encode(av.VideoFrame.from_ndarray(picture)))
        ...     out.mux(stream.encode(None))
        >>> ds = windrow.from_items([{"clip": file.getvalue()}])
        >>> ds.decode_video("clip", frames=4, size=(24, 32)).take_batch()["clip"].shape
        (1, 4, 24, 32, 3)
        """
        av = load_av("video")
        load_pillow("decode_video()")
        self._check_input(column, "decode_video", describe_wrong_type)
        framing = Framing(
            None if size is None else check_size(size),
            crop,
            shorter_side,
            scale,
            ratio,
            flip,
            interpolation,
        )
        check_bool("apply_rotation", apply_rotation)
        if apply_rotation and not hasattr(av.VideoFrame, "rotation"):
            raise PlanError(f"apply_rotation=True needs PyAV 15 or newer, not {av.__version__}: upgrade av")
        fn = DecodeVideo(
            column,
            _output(column, output_column, "decode_video"),
            PathReader(filesystem, storage_options),
            on_error,
            check_count(frames, "frames"),
            sampling,
            check_count(stride, "stride"),
            apply_rotation,
            PixelFormat(mode),
            framing,
        )
        return self._decoded("decode_video", fn, options)

    def _decoded(self: Self, caller: str, fn: ColumnDecoder, options: MediaOptions) -> Self:
        check_on_error(fn.on_error, caller)
        return self._made(caller, fn.column, fn, fn.draws > 0, options, preserves_rows=fn.on_error != "drop")


def _output(column: str, given: str | None, caller: str) -> str:
    return column if given is None else check_names([given], f"{caller}: output_column")[0]
