"""What expressions are written with, beside Python's own operators (+ - * / < <= > >= & | ~): functions of scalar
expressions.

abs_, sign, sqrt, exp, expm1, log, log1p, tanh, sigmoid, erf, sin, cos, tan, their inverses and hyperbolic forms, floor,
ceil, round_ take one; maximum, minimum, pow_, fmod, equal and not_equal two; `where(condition, a, b)` chooses, `cast(x,
"int32")` changes the type.
"""

from ..kernels.elementwise.expr import Expr as Expr
from ..kernels.elementwise.expr import abs_ as abs_
from ..kernels.elementwise.expr import acos as acos
from ..kernels.elementwise.expr import acosh as acosh
from ..kernels.elementwise.expr import asin as asin
from ..kernels.elementwise.expr import asinh as asinh
from ..kernels.elementwise.expr import atan as atan
from ..kernels.elementwise.expr import atanh as atanh
from ..kernels.elementwise.expr import cast as cast
from ..kernels.elementwise.expr import ceil as ceil
from ..kernels.elementwise.expr import cos as cos
from ..kernels.elementwise.expr import cosh as cosh
from ..kernels.elementwise.expr import equal as equal
from ..kernels.elementwise.expr import erf as erf
from ..kernels.elementwise.expr import exp as exp
from ..kernels.elementwise.expr import expm1 as expm1
from ..kernels.elementwise.expr import floor as floor
from ..kernels.elementwise.expr import fmod as fmod
from ..kernels.elementwise.expr import isinf as isinf
from ..kernels.elementwise.expr import isnan as isnan
from ..kernels.elementwise.expr import log as log
from ..kernels.elementwise.expr import log1p as log1p
from ..kernels.elementwise.expr import maximum as maximum
from ..kernels.elementwise.expr import minimum as minimum
from ..kernels.elementwise.expr import not_equal as not_equal
from ..kernels.elementwise.expr import pow_ as pow_
from ..kernels.elementwise.expr import round_ as round_
from ..kernels.elementwise.expr import sigmoid as sigmoid
from ..kernels.elementwise.expr import sign as sign
from ..kernels.elementwise.expr import sin as sin
from ..kernels.elementwise.expr import sinh as sinh
from ..kernels.elementwise.expr import sqrt as sqrt
from ..kernels.elementwise.expr import tan as tan
from ..kernels.elementwise.expr import tanh as tanh
from ..kernels.elementwise.expr import where as where
