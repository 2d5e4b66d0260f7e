"""Teachers: any object with ``fit(X, y)`` and ``predict(X)``, trained one by one or as a family.

spec           the ``[teachers]`` section of a recipe
protocol       the protocol, families, and the guarded calls through which models are used
adapters       from a model's name, class or instance to a teacher; scikit-learn estimators
boosting       LightGBM's and XGBoost's classifiers
linear         the built-in ``ridge`` and ``logistic``
channels       images with channels first
torch_teacher  torch modules, one by one
torch_family   torch modules of one architecture, trained as one program
torch_stack    what such a program needs: operations allowed, optimizers
placement      devices, memory and seeds
persist        trained teachers on disk
"""
