# An image for servers with NVIDIA GPUs. How to build and run it, and why it is as it is: docs/install.md
#
# CUDA, cuDNN and NCCL come with TensorFlow's own wheels (tensorflow[and-cuda]), in the versions of constraints/.
# A CUDA base image would bring them a second time, and only a system Python that TensorFlow may not have wheels for.
# From the host comes the driver alone, by the NVIDIA Container Toolkit: docker run --gpus all.
ARG PYTHON=3.11

# ---- the wheel, from the sources beside this file
FROM python:${PYTHON}-slim-bookworm AS wheel
WORKDIR /source
COPY . .
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

# ---- the image
FROM python:${PYTHON}-slim-bookworm

# What the wheels need of the system: rasterio reads XML with libexpat, TensorFlow and OpenCV are C++.
# No versions: Debian keeps only the newest build of each, with its security fixes.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends --yes libexpat1 libstdc++6 zlib1g \
    && rm -rf /var/lib/apt/lists/*

# Which of the optional parts; exactly one of gpu and cpu.
ARG EXTRAS=gpu,pretrained,vectors,remote,cluster
COPY --from=wheel /wheels /wheels
COPY constraints /constraints
RUN python -m pip install --no-cache-dir -c /constraints/gpu-2.21.txt "$(echo /wheels/*.whl)[${EXTRAS}]" \
    && rm -rf /wheels /constraints

# Any user may be asked for (docker run --user), so that files in mounted folders belong to the one who calls; the home
# of that user, where libraries keep what they cache, is a folder that all may write to, as /tmp is.
RUN useradd --create-home --uid 1000 segmenter \
    && chmod 1777 /home/segmenter \
    && mkdir --mode 1777 /project
ENV HOME=/home/segmenter \
    PYTHONUNBUFFERED=1 \
    NO_ALBUMENTATIONS_UPDATE=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000
WORKDIR /project

# The form with brackets: signals reach the program, which then writes its checkpoint and ends.
ENTRYPOINT ["segmenter"]
CMD ["--help"]
