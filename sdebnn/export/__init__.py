"""Exported programs: the averaged forecast of a run with frozen draws, as one file that needs neither run nor sdebnn.

``sdebnn export RUN --out run.stablehlo`` writes a program for anyone who has JAX (``pip install jax flatbuffers``):

    import json, jax.export

    data = open("run.stablehlo", "rb").read()
    size = int.from_bytes(data[8:16], "little")
    contract = json.loads(data[48 : 48 + size])
    program = jax.export.deserialize(bytearray(data[48 + size :]))
    outputs = program.call(x)

``sdebnn export RUN --out run.onnx`` writes one for ONNX runtimes, which needs no JAX:

    import json, onnxruntime

    session = onnxruntime.InferenceSession("run.onnx")
    contract = json.loads(session.get_modelmeta().custom_metadata_map["sdebnn.contract"])
    names = [output["name"] for output in contract["outputs"]]
    outputs = dict(zip(names, session.run(names, {"x": x})))

``contract["input"]`` describes x, and ``contract["outputs"]`` the outputs. ``load_exported`` reads both kinds, and
verifies a file before use.
"""

from sdebnn.export.exporting import ExportResult, export_forecaster, export_run
from sdebnn.export.loading import Exported, load_exported

__all__ = ["ExportResult", "Exported", "export_forecaster", "export_run", "load_exported"]
