"""Trainings that show what is offered: each recipe with its weights, each setting once, pairs of settings.

`website.refused` runs them, a few steps each, and makes a page of what is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

_MOST = 6
"""Settings that a training shows."""


@dataclass(frozen=True)
class Offer:
    """A training of a few steps by train.py.

    Attributes:
        recipe: name in configs/, without ending.
        settings: as after --set; the first is what the training shows, the others are what it needs.
        options: further options of train.py.
        alone: in a process of its own, as TensorFlow is to be imported in another way.
        joins: may be shown by a training that shows other settings too.
    """

    recipe: str
    settings: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    alone: bool = False
    joins: bool = False

    @property
    def name(self) -> str:
        """Recipe, settings and options in a line."""
        return " ".join([self.recipe, *self.settings, *self.options])


PAGES = {
    "dubai_pretrained": """
        seed=3
        dataset.label_nodata=ignore
        dataset.metres_per_pixel=0.3
        dataset.metres_per_pixel={pattern: 'tile_(\\d+)', unit: cm}
        dataset.cache=CACHE
        dataset.cache_limit=1
        dataset.cache_compression=lz4
        dataset.ignore=['#9b9b9b']
        dataset.bands=[3, 2, 1]
        dataset.label_kind=eroded
        dataset.unlabelled=skip
        dataset.split.validation=['tile_2']
        dataset.split.leave_out=['tile_2']
        dataset.split.validation_share=0.5
        dataset.split.test_share=0.3 | dataset.split.test=[]
        dataset.split.seed=1 | dataset.split.validation_share=0.5
        dataset.split.folds=2 | dataset.split.test=[]
        dataset.split.fold=2 | dataset.split.folds=2 | dataset.split.test=[]
        dataset.encoding=colours
        dataset.split={validation_share: 0.5}
        tiles.size=32
        tiles.overlap=16
        tiles.jitter=false
        tiles.min_labelled=0.5
        sampling.method=shuffle | sampling.quota=presence
        sampling.method=repeat_factor | sampling.quota=presence
        sampling.method=rare_class | sampling.quota=presence
        sampling.method=foreground | sampling.quota=presence
        sampling.coverage=strict | sampling.quota=presence
        sampling.coverage=off | sampling.quota=presence
        sampling.min_pixels=8
        sampling.max_repeats_per_tile=1
        sampling.quota=presence
        sampling.lift=2
        sampling.quotas={water: 2}
        sampling.repeat_threshold=0.5 | sampling.method=repeat_factor | sampling.quota=presence
        sampling.rare_temperature=0.01
        sampling.foreground_share=0.5 | sampling.method=foreground | sampling.quota=presence
        sampling.per_replica=guarantee --logical-devices 2
        sampling.per_replica=off
        sampling.scale_strata=[0.1] | dataset.metres_per_pixel={pattern: 'tile_(\\d+)', unit: cm}
        augmentation.d4=false
        augmentation.scale=0
        augmentation.scale_to=[0.2, 0.4] | augmentation.scale=0 | dataset.metres_per_pixel=0.3
        augmentation.rotation=90
        augmentation.brightness=0.1
        augmentation.contrast=0.1
        augmentation.hue=10
        augmentation.saturation=0.2
        augmentation.blur=0.5
        augmentation.noise=0.05
        augmentation.probability={d4: 0.5}
        augmentation.probability.affine=0.5
        augmentation.probability.brightness_contrast=0.5 | augmentation.brightness=0.1
        augmentation.probability.hue_saturation=0.5 | augmentation.hue=10
        augmentation.probability.noise=0.5 | augmentation.noise=0.05
        augmentation.transforms=[{name: RandomGamma, p: 0.5}]
        augmentation=[{name: HorizontalFlip, p: 0.5}]
        augmentation.mosaic=0.5
        augmentation.copy_paste={p: 0.5, classes: [water]}
        model.encoder=resnet18 | model.weights=null
        model.encoder=resnet50 | model.weights=null
        model.encoder=keras_resnet50 | model.weights=KERAS_RESNET50
        model.encoder=efficientnet_lite1
        model.encoder=efficientnet_lite2
        model.encoder=efficientnet_v2_b0 | model.weights=null
        model.encoder=mobilenet_v2 | model.weights=null
        model.encoder=densenet121 | model.weights=null
        model.encoder=convnext_tiny | model.weights=null
        model.decoder=fpn
        model.decoder=upernet
        model.decoder=deeplabv3plus
        model.weights=null
        model.weight_bands=[blue, green, red]
        model.input_normalisation=scenes
        model.decoder_width=64
        model.output_stride=16 | model.decoder=deeplabv3plus
        model.output_stride=8 | model.decoder=deeplabv3plus
        model.image_pooling=true | model.decoder=deeplabv3plus
        model.drop_path=0.2
        model.dropout=0.2
        loss.cross_entropy=0
        loss.focal=1
        loss.focal_gamma=1 | loss.focal=1
        loss.normalisation=per_pixel
        loss.dice=0
        loss.jaccard=1
        loss.tversky=1
        loss.tversky_alpha=0.5 | loss.tversky=1
        loss.tversky_beta=0.5 | loss.tversky=1
        loss.lovasz=1
        loss.class_weights=inverse_sqrt
        loss.class_weights=[1, 1, 2, 1, 3]
        loss.label_smoothing=0.1
        loss.ohem=0.2
        loss.ohem_threshold=0.7 | loss.ohem=0.2
        loss.logit_adjustment=1
        loss.boundary=5
        loss.boundary_width=3 | loss.boundary=5
        training.global_batch=8
        training.epochs=2
        training.optimizer=sgd
        training.momentum=0.5 | training.optimizer=sgd
        training.nesterov=false | training.optimizer=sgd
        training.learning_rate=1e-4
        training.scaling=linear | training.reference_batch=8
        training.reference_batch=16 | training.scaling=sqrt
        training.weight_decay=0.01
        training.freeze_encoder=1 | training.epochs=2
        training.freeze_norms=encoder
        training.freeze_norms=all
        training.rates={encoder stage 1: 0, head: 2}
        training.schedule=constant
        training.schedule=exponential | training.decay_steps=2
        training.schedule=piecewise | training.boundaries=[1] | training.values=[1, 0.1]
        training.warmup=1
        training.decay_rate=0.5 | training.schedule=exponential | training.decay_steps=2
        training.decay_steps=3 | training.schedule=exponential
        training.staircase=true | training.schedule=exponential | training.decay_steps=1
        training.boundaries=[2] | training.schedule=piecewise | training.values=[1, 0.5]
        training.values=[1, 0.1] | training.schedule=piecewise | training.boundaries=[1]
        training.clip_norm=0
        training.clip_value=0.1 | training.clip_norm=0
        training.precision=float64
        training.precision=mixed_float16
        training.precision=mixed_bfloat16
        training.accumulate=2 | loss.dice=0
        training.ema=0
        training.steps_per_call=1
        training.input_workers=2
        training.xla=true
        training.xla=auto
        training.validate_every=2 | training.epochs=2 | dataset.split.validation=['tile_2']
        training.best_by=iou:water | dataset.split.validation=['tile_2']
        training.stop_after=1 | training.epochs=2 | dataset.split.validation=['tile_2']
        training.checkpoint_every=1
        training.keep_checkpoints=1
        distribution.strategy=one_device
        distribution.strategy=mirrored --logical-devices 2
        distribution.strategy=central_storage --logical-devices 2
        distribution.strategy=multi_worker_mirrored
        distribution.strategy=parameter_server
        distribution.strategy=tpu
        distribution.devices=[0] | distribution.strategy=one_device --logical-devices 2
        distribution.shares=[3, 1] --logical-devices 2
        distribution.shares=auto --logical-devices 2
        distribution.tpu=local | distribution.strategy=tpu
        distribution.cross_device=reduction_to_one --logical-devices 2
        distribution.cross_device=hierarchical_copy --logical-devices 2
        distribution.cross_device=nccl --logical-devices 2
        distribution.visible_devices=[]
        distribution.memory_growth=false
        distribution.memory_limit=50 % | distribution.memory_growth=false
        distribution.logical_gpus={number: 2, memory: 2500} | distribution.memory_growth=false
        distribution.soft_placement=false
        distribution.log_placement=true
        distribution.start_timeout=60
        distribution.heartbeat_timeout=30
        distribution.progress_timeout=600
        distribution.deterministic=true
        prediction.window=64 | dataset.split.validation=['tile_2']
        prediction.batch=2 | dataset.split.validation=['tile_2']
    """,
    "dubai": """
        model.depth=2
        model.width=8
        model.max_width=32
        model.upsampling=bilinear
        model.upsampling=transpose
        model.normalisation=none
        model.dropout=0.2
    """,
    "folder": """
        dataset.grid=images/{name}.tif | dataset.images=['images/{name}.tif', 'images/{name}.tif']
        dataset.drivers=[VRT]
        dataset.labels_by=georeference
        dataset.vector={attribute: kind, outside: background} | dataset.labels=areas.geojson
        dataset.vector={attribute: kind, values: {house: building}} | dataset.labels=areas.geojson
        dataset.vector={attribute: kind, order: [road, building]} | dataset.labels=areas.geojson
        dataset.vector={attribute: kind, all_touched: true} | dataset.labels=areas.geojson
        dataset.vector={attribute: kind, layer: areas} | dataset.labels=areas.geojson
        dataset.vector={attribute: kind, crs: EPSG:25833} | dataset.labels=areas.geojson
        dataset.classes=[{name: a, code: 0, also: [9]}, {name: b, code: 1}, {name: c, code: 2}]
        dataset.split.blocks={size: 48, buffer: 12} | dataset.split.validation_share=0.3 | model.depth=1
        dataset.split.blocks={size: 48, unit: metres, buffer: 12} | dataset.split.validation_share=0.3
    """,
    "potsdam": """
        dataset.images=IRRG
        dataset.images=RGBIR | augmentation.hue=0 | augmentation.saturation=0
        dataset.labels=full
        dataset.classes=5
        dataset.split={validation: ['2_11'], train: ['2_10']}
        dataset.ignore=['#010203']
        dataset.leave_out=['2_13'] | dataset.split={validation: ['2_11']}
    """,
    "naic2020": """
        dataset.round=2
        dataset.ignore=[900]
        dataset.leave_out=['0001']
        dataset.validation_share=0.3
    """,
}
"""Recipe → a line for each setting: what is shown, then ` | ` and what it needs, then options of train.py."""

RECIPES = (
    *("demo", "potsdam_small", "dubai", "dubai_pretrained", "folder", "naic2020", "naic2020_pretrained"),
    *("naic2020_round2", "potsdam", "potsdam_pretrained"),
)

PAIRS = {
    "dubai_pretrained": """
        distribution.deterministic=true | training.xla=true
        distribution.deterministic=true | training.xla=auto
        distribution.deterministic=true | training.xla=true | model.encoder=resnet18 | model.weights=null
        distribution.deterministic=true | training.xla=auto | model.encoder=resnet18 | model.weights=null
        distribution.deterministic=true | model.decoder=fpn
        distribution.deterministic=true | model.decoder=upernet
        distribution.deterministic=true | training.precision=mixed_float16
        distribution.deterministic=true --logical-devices 2
        training.xla=true --logical-devices 2
        training.xla=auto --logical-devices 2
        training.xla=true | training.accumulate=2 | loss.dice=0
        training.xla=auto | training.accumulate=2 | loss.dice=0
        training.xla=true | training.precision=mixed_float16
        training.xla=true | model.drop_path=0.2
        training.xla=true | loss.lovasz=1
        training.xla=true | training.freeze_encoder=1 | training.epochs=2
        training.xla=true | training.freeze_norms=encoder
        training.freeze_norms=encoder | training.freeze_encoder=1 | training.epochs=2
        training.freeze_norms=all | training.rates={encoder: 0}
        training.freeze_norms=encoder | training.accumulate=2 | loss.dice=0
        training.freeze_norms=encoder | training.ema=0.9
        training.freeze_norms=encoder --logical-devices 2
        training.freeze_norms=encoder | training.precision=mixed_float16
        training.freeze_norms=encoder | model.encoder=convnext_tiny | model.weights=null
        training.freeze_norms=all | model.encoder=convnext_tiny | model.weights=null
        training.accumulate=2
        training.accumulate=2 | loss.dice=0 | loss.ohem=0.2 | loss.normalisation=per_pixel
        training.accumulate=2 | loss.dice=0 --logical-devices 2
        training.accumulate=2 | loss.dice=0 | distribution.shares=[3, 1] --logical-devices 2
        training.clip_norm=1 | training.clip_value=1
        sampling.quotas={water: 2} | sampling.per_replica=guarantee --logical-devices 2
        sampling.quotas={water: 2} | sampling.coverage=strict | sampling.quota=presence
        sampling.per_replica=guarantee | distribution.shares=[3, 1] --logical-devices 2
        augmentation.scale_to=[0.2, 0.4] | dataset.metres_per_pixel=0.3
        loss.label_smoothing=0.1 | loss.logit_adjustment=1
        training.ema=0.9 | training.precision=mixed_float16
        model.weights=imagenet | dataset.bands=[1, 2]
        model.drop_path=0.2 | model.encoder=densenet121 | model.weights=null
        model.output_stride=16
    """,
    "dubai": """
        training.freeze_norms=encoder
        training.freeze_norms=all | model.normalisation=none
        training.freeze_encoder=1 | training.epochs=2
        training.xla=true | distribution.deterministic=true
        training.xla=auto | distribution.deterministic=true
        training.xla=true | model.dropout=0.2
        training.xla=true | model.upsampling=bilinear
        distribution.deterministic=true | model.upsampling=bilinear
        training.rates={bottleneck: 0.5}
    """,
}
"""Settings that two pages name together, or that change the same arithmetic."""


def offers() -> tuple[Offer, ...]:
    """Return all trainings, each once."""
    every = [*map(Offer, RECIPES), *_lines(PAGES, joins=True), *_lines(PAIRS, joins=False)]
    return tuple({offer.name: offer for offer in reversed(every)}.values())[::-1]


def _lines(part: Mapping[str, str], *, joins: bool) -> Iterator[Offer]:
    for recipe, text in part.items():
        yield from (_read(recipe, line.strip(), joins) for line in text.splitlines() if line.strip())


def _read(recipe: str, line: str, joins: bool) -> Offer:
    text, *options = line.split(" --")
    words = tuple(word for option in options for word in f"--{option}".split())
    settings = tuple(part.strip() for part in text.split(" | "))
    alone = settings[0].startswith("distribution.log_placement")
    return Offer(recipe, settings, words, alone, joins and not alone and "training.xla" not in settings[0])


def joined(several: Sequence[Offer]) -> Offer:
    """Return the training that shows what several do."""
    settings = tuple(dict.fromkeys(setting for offer in several for setting in offer.settings))
    return replace(several[0], settings=settings)


def groups(chosen: Sequence[Offer]) -> list[list[Offer]]:
    """Put offers that may be shown together into groups: none sets what another sets otherwise."""
    found: list[list[Offer]] = []
    for offer in chosen:
        fits = (group for group in found if _fits(offer, group)) if offer.joins else iter(())
        if (group := next(fits, None)) is not None:
            group.append(offer)
        else:
            found.append([offer])
    return found


def _fits(offer: Offer, group: Sequence[Offer]) -> bool:
    first = group[0]
    if (
        not first.joins
        or len(group) >= _MOST
        or (first.recipe, first.options) != (offer.recipe, offer.options)
    ):
        return False
    theirs = set(joined(group).settings)
    return not any(_clash(a, b) for a in offer.settings for b in theirs - {a})


def _clash(one: str, other: str) -> bool:
    """Return True if two settings are of the same key, or one is of a part of the other."""
    a, b = (text.partition("=")[0] + "." for text in (one, other))
    return a.startswith(b) or b.startswith(a)
